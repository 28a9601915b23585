"""The console: a page that talks to the model and shows the fleet, its decisions and its traces."""
