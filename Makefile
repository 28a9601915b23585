# One short line a target; what needs more lives in scripts/.
SHELL := bash
PORT ?= 8000
BIN := .venv/bin
STAMP := .venv/.installed
PROJECTS := $(wildcard proto/pyproject.toml libs/*/pyproject.toml services/*/pyproject.toml) cli/pyproject.toml
flag = $(if $(filter-out 0,$($(1))),--$(2) $($(1)))
UP := --port $(PORT) $(if $(filter-out 0,$(DETACH)),--detach) $(call flag,MODEL,model) \
      $(call flag,PREFILL,prefill) $(call flag,DECODE,decode) $(call flag,VISION,vision) $(call flag,RECIPE,recipe)

.PHONY: docs e2e-compose chaos faults soak cancels outages guesses train-tiny scores replay-quality expert-load serve stop test test-console test-gpu schemas fuzz lint audit proto setup vectors vectors-generated bench bench-fleet bench-tensors bench-engine bench-speculation bench-bus bench-recipe bench-model bench-kv kv-trace bench-policy bench-sim bench-balance bench-scaling bench-elastic bench-experts bench-verification

serve: $(STAMP)  ## the whole fleet: PORT=8000 DETACH=1 MODEL=dir PREFILL=n DECODE=n VISION=n RECIPE=n
	@$(BIN)/rorqual up $(UP)

stop: $(STAMP)  ## end a fleet started with DETACH=1
	@$(BIN)/rorqual down

test: $(STAMP)  ## the whole suite; ARGS= goes to pytest
	@$(BIN)/rorqual model prepare
	@scripts/test.sh $(ARGS)

chaos: $(STAMP)  ## random faults under load, one JSON line: SEED=n SECONDS=60 ARGS="decode kill"
	@$(BIN)/rorqual chaos --seed $(or $(SEED),0) --seconds $(or $(SECONDS),60) $(ARGS)

faults: $(STAMP)  ## docs/faults.md: each fault for itself under load
	@$(BIN)/rorqual chaos --table docs/faults.md $(ARGS)

soak: $(STAMP)  ## MINUTES=30 of load with a fault every 20 s; no process may grow
	@$(BIN)/rorqual chaos --seed $(or $(SEED),0) --minutes $(or $(MINUTES),30) --every 20 --memory $(ARGS)

cancels: $(STAMP)  ## N=2000 requests whose clients leave at random times: nothing stays held
	@$(BIN)/rorqual chaos --seed $(or $(SEED),0) --cancels $(or $(N),2000) $(ARGS)

outages: $(STAMP)  ## kvmeta, Redis and NATS away for 20 s each under load
	@TEST_OUTAGES=1 $(BIN)/python -m pytest tests/e2e/test_kv_outages.py $(ARGS)

guesses: $(STAMP)  ## N requests to a fleet without and one with guessed tokens: equal answers
	@TEST_GUESS_PROMPTS=$(or $(N),200) $(BIN)/python -m pytest tests/e2e/test_guesses.py $(ARGS)

e2e-compose: $(STAMP)  ## the end-to-end tests against the fleet of `docker compose up`: URL=http://127.0.0.1:8000
	@$(BIN)/rorqual model prepare
	@RORQUAL_URL=$(or $(URL),http://127.0.0.1:$(PORT)) $(BIN)/python -m pytest -rs tests/e2e $(ARGS)

docs: $(STAMP)  ## the site in build/site, its page of settings written anew
	@$(BIN)/python -m scripts.settings_table docs/settings.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "build/site/index.html"

test-gpu: $(STAMP)  ## kernels and models on the accelerator; skipped, with the reason, where there is none
	@$(BIN)/python -m pytest tests/gpu $(ARGS)

test-console: $(STAMP)  ## the console in a real browser; needs chromium: apt-get install chromium
	@$(BIN)/pip install -q -c constraints.txt -r requirements-console.txt
	@$(BIN)/python -m pytest tests/e2e/test_console.py $(ARGS)

schemas: $(STAMP)  ## generated and hostile JSON schemas against a fleet of its own: SEED=1 ARGS="--schemas 50"
	@$(BIN)/python -m tests.schemas.run --seed $(or $(SEED),1) $(ARGS)

fuzz: $(STAMP)  ## mutated bodies to every endpoint: N=100000 ARGS="--seed 1 chat_completions", HTTP=1 through a gateway, API=1 from its OpenAPI
	@$(if $(API),$(BIN)/pip install -q -c constraints.txt -r requirements-fuzz.txt)
	@$(BIN)/python -m tests.fuzz.$(if $(API),over_openapi,$(if $(HTTP),over_http,run)) $(if $(N),$(if $(API),--examples,--bodies) $(N)) $(ARGS)

lint: $(STAMP)  ## style, types, import rules, generated files
	@scripts/lint.sh

audit:  ## known faults of the pinned dependencies; says so where the advisory service can't be reached
	@scripts/audit.sh

proto: $(STAMP)  ## regenerate the committed stubs
	@scripts/proto.sh proto

vectors: $(STAMP)  ## cases with the reference's answers: FILES="a.jsonl b.jsonl"
	@$(BIN)/python -m tests.vectors.run $(FILES) $(ARGS)

vectors-generated: $(STAMP)  ## the same for cases made up from a seed: ARGS="--count 300 --seed 0"
	@$(BIN)/python -m tests.vectors.generated $(ARGS)

train-tiny: $(STAMP)  ## makes rorqual-tiny-v41, or goes on making it: ARGS="--steps 100"; SIGTERM stops it
	@$(BIN)/python -m training.tiny_v41 train $(ARGS)

scores: $(STAMP)  ## held-out exercises of SEED=n, asked of a running fleet that serves rorqual-tiny-v41
	@$(BIN)/python -m training.tiny_v41.scores --seed $(or $(SEED),1) --url http://127.0.0.1:$(PORT) $(ARGS)

replay-quality: $(STAMP)  ## docs/replay-quality.md: what bounded replay costs rorqual-tiny-v41, against exact computation
	@$(BIN)/python -m training.tiny_v41.replay --write docs/replay-quality.md $(ARGS)

expert-load: $(STAMP)  ## docs/expert-load.{json,png}: how families of tasks load the experts of rorqual-tiny-v41
	@$(BIN)/python -m training.tiny_v41.expert_load --write docs/expert-load $(ARGS)

setup: $(STAMP)

bench: bench-tensors bench-bus bench-engine bench-model bench-recipe bench-fleet

bench-fleet bench-tensors bench-engine bench-bus bench-model bench-speculation bench-verification bench-experts: bench-%: $(STAMP)
	@$(BIN)/python -m bench.bench_$* $(ARGS)

bench-scaling: $(STAMP)  ## a simulated day of 1,000 cards against a fixed fleet and a threshold: ARGS="--trace FILE --hours 24"
	@$(BIN)/python -m bench.bench_scaling $(ARGS)

bench-elastic: $(STAMP)  ## a real fleet of 1 to 4 to 1 prefill and decode under load that rises and falls
	@$(BIN)/python -m bench.bench_elastic $(ARGS)

bench-balance: $(STAMP)  ## three prefill processes, one slowed: nobody idle while work waits, short prompts behind long ones
	@$(BIN)/python -m bench.bench_balance $(ARGS)

bench-policy: $(STAMP)  ## the bars of the load balancers: TRACES=folder of traces
	@$(BIN)/python -m bench.bench_policy $(if $(TRACES),--traces $(TRACES)) $(ARGS)

bench-sim: $(STAMP)  ## what the simulator predicts of a real fleet: TRACE=file with its lengths
	@$(BIN)/python -m bench.bench_sim $(if $(TRACE),--trace $(TRACE)) $(ARGS)

bench-kv: $(STAMP)  ## the block store against fio on the same disk: ARGS="--dir DIR"; prefix matching; TTFT of a hit
	@$(BIN)/python -m bench.bench_kv_store $(ARGS); in=$$?; $(BIN)/python -m bench.bench_kv_match || in=1; \
	$(BIN)/python -m bench.bench_kv_ttft && exit $$in

kv-trace: $(STAMP)  ## hit rate of a trace (Mooncake format) through kvmeta and store: TRACE=file.jsonl
	@$(BIN)/python -m bench.kv_trace $(TRACE) $(ARGS)

bench-recipe: $(STAMP)  ## against deepseek-recipe; the first run trains a tokenizer
	@$(BIN)/python -m bench.bench_recipe $(ARGS); in=$$?; $(BIN)/python -m bench.bench_recipe_output && exit $$in

$(STAMP): $(PROJECTS) requirements-dev.txt constraints.txt scripts/setup.sh
	@scripts/setup.sh
