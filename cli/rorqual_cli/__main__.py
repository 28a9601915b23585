"""`rorqual`: arguments in, exit code out; wiring only."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rorqual_cli.bench_arguments import add_bench
from rorqual_cli.chaos_arguments import add_chaos
from rorqual_cli.keys_arguments import add_keys
from rorqual_cli.kv_arguments import add_kv
from rorqual_cli.model import DEFAULT_MODEL
from rorqual_cli.options import DEFAULT_HOME, SCALED, FleetOptions
from rorqual_cli.problems import CliError, ExitCode
from rorqual_cli.replay_arguments import add_plan, add_replay
from rorqual_cli.report import PlainReporter, make_reporter
from rorqual_cli.state import running_state

_COUNTED = (*SCALED, "router", "kvmeta", "grammar", "gateway")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `rorqual` script."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)
    try:
        code = int(options.run(options, arguments))
    except CliError as error:
        print(f"rorqual: {error}", file=sys.stderr)
        code = int(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads the rest
        code = 128 + signal.SIGPIPE
    except OSError as error:
        print(f"rorqual: {error}", file=sys.stderr)
        code = int(ExitCode.FAILED)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rorqual", description="A local Rorqual fleet.")
    home = argparse.ArgumentParser(add_help=False)
    default_home = Path(os.environ.get("RORQUAL_HOME", DEFAULT_HOME))
    home.add_argument("--home", type=Path, default=default_home, help="run directory")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_up(commands, home)
    _add_small(commands, home)
    _add_profile(commands)
    _add_chat(commands, home)
    add_replay(commands, _replay)
    add_plan(commands, _plan)
    add_kv(commands, home, _kv)
    add_keys(commands, home, _keys)
    _add_measuring(commands, home)
    _add_replay_log(commands, home)
    add_chaos(commands, home, _chaos)
    return parser


def _add_up(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], home: argparse.ArgumentParser
) -> None:
    up = commands.add_parser("up", parents=[home], help="start a fleet on this machine")
    up.add_argument("--model", default=DEFAULT_MODEL, help="known id, GGUF file or directory")
    up.add_argument("--host", default="127.0.0.1", help="address the gateway listens on")
    up.add_argument("--port", type=_port, default=8000, help="port of the gateway; 0 = any")
    for service in _COUNTED:
        up.add_argument(f"--{service}", type=_count, default=1, metavar="N", help="instances")
    for service in SCALED:
        up.add_argument(f"--max-{service}", type=_count, metavar="N", help="the scaler's bound")
    up.add_argument("--otlp-endpoint", help="send spans here, e.g. http://127.0.0.1:4317")
    up.add_argument("--drain", type=_seconds, default=10.0, metavar="S", help="grace at the end")
    up.add_argument("--detach", action="store_true", help="return once the fleet is ready")
    up.set_defaults(run=_up)


def _add_small(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], home: argparse.ArgumentParser
) -> None:
    down = commands.add_parser("down", parents=[home], help="stop the fleet")
    down.set_defaults(run=_down)
    ps = commands.add_parser("ps", parents=[home], help="live instances")
    ps.add_argument("--nats-url", help="default: that of the fleet in --home")
    ps.set_defaults(run=_ps)
    top = commands.add_parser("top", parents=[home], help="the fleet, live")
    top.add_argument("--nats-url", help="default: that of the fleet in --home")
    top.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="between looks")
    top.add_argument("--rounds", type=_count, metavar="N", help="looks; default: until Ctrl-C")
    top.set_defaults(run=_top)
    trace = commands.add_parser("trace", parents=[home], help="one request as a tree of spans")
    trace.add_argument("id", nargs="?", help="trace id or request id; default: newest request")
    trace.set_defaults(run=_trace)
    model = commands.add_parser("model", help="models on disk")
    prepare = model.add_subparsers(required=True, metavar="ACTION").add_parser(
        "prepare", parents=[home], help="fetch and convert a model"
    )
    prepare.add_argument("--model", default=DEFAULT_MODEL, help="known id, GGUF file or directory")
    prepare.add_argument("--verify", action="store_true", help="hash every file")
    prepare.set_defaults(run=_prepare)


def _add_profile(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    profile = commands.add_parser("profile", help="prompt profiles of models")
    action = profile.add_subparsers(required=True, metavar="ACTION").add_parser(
        "import", help="write a known model's profile beside its checkpoint"
    )
    action.add_argument("family", choices=["deepseek"], help="whose prompts")
    action.add_argument("--out", type=Path, required=True, metavar="DIR", help="the checkpoint")
    action.add_argument("--version", choices=["v4", "v4.1"], default="v4.1")
    action.set_defaults(run=_import_profile)


def _add_chat(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], home: argparse.ArgumentParser
) -> None:
    chat = commands.add_parser("chat", parents=[home], help="talk to the model")
    chat.add_argument("question", nargs="*", help="one question; without it a conversation")
    chat.add_argument("--url", help="gateway; default: that of the fleet in --home")
    chat.add_argument("--model", help="default: the first one served")
    chat.add_argument("--system", help="system message")
    chat.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"))
    chat.add_argument("--max-tokens", type=_count, metavar="N")
    chat.add_argument("--temperature", type=float, metavar="T")
    chat.set_defaults(run=_chat)


def _add_measuring(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], home: argparse.ArgumentParser
) -> None:
    calibrate = commands.add_parser(
        "calibrate", parents=[home], help="measure a model's step times on this machine"
    )
    calibrate.add_argument("--model", default=DEFAULT_MODEL, help="known id, GGUF file, directory")
    calibrate.add_argument("--device", default="cpu", help="torch device")
    calibrate.add_argument(
        "--seconds", type=_seconds, default=30.0, metavar="S", help="about how long to measure"
    )
    calibrate.set_defaults(run=_calibrate)
    add_bench(commands, home, _bench, count=_count, seconds=_seconds)
    record = commands.add_parser(
        "record", parents=[home], help="write live requests as a trace: counts, no content"
    )
    record.add_argument("out", type=Path, help="trace file, JSONL, as `rorqual replay` reads it")
    record.add_argument("--nats-url", help="default: that of the fleet in --home")
    record.add_argument(
        "--seconds", type=_seconds, default=0.0, metavar="S", help="0 = until Ctrl-C"
    )
    record.set_defaults(run=_record)


def _add_replay_log(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], home: argparse.ArgumentParser
) -> None:
    text = "make logged policy decisions again and compare"
    replay_log = commands.add_parser("replay-log", parents=[home], help=text, description=text)
    replay_log.add_argument("logs", nargs="*", type=Path, help="log files; default: the fleet's")
    replay_log.set_defaults(run=_replay_log)


def _replay_log(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.replay_log import replay_log

    return replay_log(options.logs, options.home)


def _up(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from rorqual_cli.up import run_detached, run_foreground

    report = make_reporter()
    if options.detach:
        rest = [argument for argument in arguments[1:] if argument != "--detach"]
        return run_detached(rest, options.home, report)
    fleet = FleetOptions(
        home=options.home,
        model=options.model,
        host=options.host,
        port=options.port,
        num_instances={service: getattr(options, service) for service in _COUNTED},
        max_instances={service: getattr(options, f"max_{service}") or 0 for service in SCALED},
        otlp_endpoint=options.otlp_endpoint,
        drain_s=options.drain,
    )
    return run_foreground(fleet, report)


def _down(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.down import down

    return down(options.home, make_reporter())


def _ps(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.address import bus_address
    from rorqual_cli.ps import ps

    return ps(bus_address(options.nats_url, options.home))


def _top(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.address import bus_address
    from rorqual_cli.top import top

    address = bus_address(options.nats_url, options.home)
    return top(address, interval_s=options.interval, num_rounds=options.rounds)


def _trace(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.trace import trace

    return trace(options.home, options.id)


def _prepare(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.model import prepare

    say = make_reporter().say
    home = options.home.resolve()
    asyncio.run(prepare(options.model, home, say, verify_all=options.verify))
    return 0


def _import_profile(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.profile import import_profile

    path = import_profile(options.version, options.out)
    make_reporter().say(f"wrote {path}")
    return 0


def _chat(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.chat import Conversation, ask_once, open_client, served_model, talk

    base_url = options.url or running_state(options.home).base_url
    question = " ".join(options.question)
    if not question and not sys.stdin.isatty():
        question = sys.stdin.read().strip()
    with open_client(base_url, options.api_key) as client:
        conversation = Conversation(
            client, options.model or served_model(client), options.max_tokens, options.temperature
        )
        if options.system:
            conversation.messages.append({"role": "system", "content": options.system})
        return ask_once(conversation, question) if question else talk(conversation)


def _kv(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    if options.action == "clear":
        return _clear(options)
    from rorqual_cli.kv import run_kv

    return run_kv(options)


def _clear(options: argparse.Namespace) -> int:
    from rorqual_cli.address import bus_address
    from rorqual_cli.kv_clear import clear

    if options.all == (options.tenant is not None or options.fingerprint is not None):
        raise CliError("name --tenant, --fingerprint or both, or else --all")
    address = bus_address(options.nats_url, options.home)
    return clear(address, tenant=options.tenant, fingerprint=options.fingerprint)


def _keys(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.keys import run_keys

    return run_keys(options)


def _replay(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.replay import run_replay

    return run_replay(options)


def _plan(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.plan import run_plan

    return run_plan(options)


def _calibrate(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.calibrate import run_calibrate

    return run_calibrate(options, make_reporter())


def _bench(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.bench import run_bench

    return run_bench(options, make_reporter())


def _record(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.record import run_record

    return run_record(options, make_reporter())


def _chaos(options: argparse.Namespace, _arguments: Sequence[str]) -> int:
    from rorqual_cli.chaos.run import ChaosOptions, run_chaos

    chaos = ChaosOptions(
        home=options.home,
        model=options.model,
        seed=options.seed,
        seconds=60 * options.minutes if options.minutes else options.seconds,
        every_s=options.every,
        num_clients=options.clients,
        faults=options.fault,
        table=options.table,
        watches_memory=options.memory,
        num_cancels=options.cancels,
    )
    return run_chaos(chaos, PlainReporter(sys.stderr))


def _port(text: str) -> int:
    number = _whole_number(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("a port is between 0 and 65535")
    return number


def _count(text: str) -> int:
    number = _whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


if __name__ == "__main__":
    main()
