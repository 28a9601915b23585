"""Prefill instances behind the waiting line, in events: every decision is that of the services."""

import heapq
from dataclasses import dataclass, field
from itertools import count

from rorqual_policy.chunking import StepPlan, WaitingSequence, plan_chunks
from rorqual_policy.fair_share import FairShare
from rorqual_policy.prefill_line import (
    PrefillLine,
    Puller,
    WaitingPrompt,
    choose_pull,
    line_params,
)
from rorqual_policy.prefill_policy import PREFILL_POLICIES
from rorqual_policy.step_cost import StepCost, chunk_cost_s, relative_speed, step_budget_s

STEP_TOKENS = 512


@dataclass
class Instance:
    """One that steps through what it was given."""

    name: str
    cost: StepCost
    left: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    """By prompt: arrival, tokens to compute, tokens computed; without the step under way."""
    step: list = field(default_factory=list)
    until_s: float | None = None
    """End of the step under way."""

    def puller(self, now_s, mean):
        works_s = [chunk_cost_s(self.cost, todo, done) for _, todo, done in self.left.values()]
        return Puller(
            self.name,
            pending_s=sum(works_s),
            longest_s=max(works_s, default=0.0),
            running_s=0.0 if self.until_s is None else self.until_s - now_s,
            speed=relative_speed(self.cost, mean),
            a0_s=self.cost.a0_s,
        )

    def begin(self, now_s, policy, waiting_s, num_instances):
        """Plan a step over what is left; when it ends, None without any work."""
        budget_s = step_budget_s(self.cost, policy.budget, waiting_s, num_instances)
        plan = StepPlan(
            self.cost, budget_s - self.cost.a0_s, STEP_TOKENS, policy.order, policy.shared_part
        )
        waiting = [
            WaitingSequence(name, todo, done, at_s)
            for name, (at_s, todo, done) in self.left.items()
        ]
        self.step = plan_chunks(waiting, plan)
        took_s = self.cost.a0_s
        for name, num_tokens in self.step:
            at_s, todo, done = self.left.pop(name)
            took_s += chunk_cost_s(self.cost, num_tokens, done)
            if todo > num_tokens:
                self.left[name] = at_s, todo - num_tokens, done + num_tokens
        self.until_s = now_s + took_s if self.step else None
        return self.until_s


class LineFleet:
    """Clients, the line and the instances of these costs."""

    def __init__(self, costs, policy="rorqual"):
        self.instances = [Instance(f"p{i}", cost) for i, cost in enumerate(costs)]
        self.mean = StepCost(*(sum(values) / len(costs) for values in zip(*costs, strict=True)))
        self.make_policy = PREFILL_POLICIES[policy]
        self.line = PrefillLine(self.make_policy(self.mean).order)
        self.fair = FairShare()
        self.prompts = {}

    def run(self, arrivals, after=lambda name: None):
        """Seconds from arrival to the first token, by name. arrivals: (seconds, name, tokens).

        after(name): tokens of the prompt that the same client sends then, None = no more.
        """
        numbers = count()
        events = [(at_s, next(numbers), name, tokens) for at_s, name, tokens in arrivals]
        heapq.heapify(events)
        waited_s = {}
        while events:
            now_s, _, who, tokens = heapq.heappop(events)
            if isinstance(who, Instance):
                for name, _ in who.step:
                    if name not in who.left:
                        waited_s[name] = now_s - self.prompts[name][0]
                        if (following := after(name)) is not None:
                            again = (now_s, next(numbers), f"{name}+", following)
                            heapq.heappush(events, again)
                who.until_s = None
            else:
                self.prompts[who] = now_s, tokens
                work_s = chunk_cost_s(self.mean, tokens, 0)
                self.line.add(WaitingPrompt(who, "tenant", 0, now_s, work_s))
            self._give(now_s)
            for instance in self.instances:
                if instance.until_s is None and instance.left:
                    policy = self.make_policy(instance.cost)
                    end_s = instance.begin(now_s, policy, self.line.work_s, len(self.instances))
                    heapq.heappush(events, (end_s, next(numbers), instance, 0))
        return waited_s

    def _give(self, now_s):
        while len(self.line):
            pullers = [instance.puller(now_s, self.mean) for instance in self.instances]
            given = line_params(
                self.make_policy(self.mean),
                self.mean,
                waiting_s=self.line.work_s,
                num_ranks=len(pullers),
                own_buckets={},
                quantum_s=0.25,
                weights={},
            )
            choice = choose_pull(self.line.heads(), pullers, self.fair, given)
            if choice.job_id is None:
                return
            self.fair = choice.fair
            self.line.remove(choice.job_id)
            taker = next(i for i in self.instances if i.name == choice.instance_id)
            at_s, tokens = self.prompts[choice.job_id]
            taker.left[choice.job_id] = at_s, tokens, 0
