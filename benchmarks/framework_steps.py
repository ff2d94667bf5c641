# SPDX-License-Identifier: Apache-2.0
"""What JAX and Paddle cost under strobe, beside their own profilers, in one process.

    framework_steps.py jax|paddle [ROUNDS [STEPS]]

The CPU time that a training step takes more, as in torch_steps.py; the wall time of stop() after
so many STEPS, of strobe and of the framework's own profiler, which then has left its own file; and,
for Paddle, from there to the table of operators. Prints one JSON object.
"""

import contextlib
import gc
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import strobe
from rounds import Kept, compare, interleave, medians, own_times

LAYERS = 8

Train = Callable[[int], None]


class Paddle:
    asked: ClassVar[dict[str, dict[str, Any]]] = {
        "plain": {},
        "shapes": {"record_shapes": True},
        "memory": {"profile_memory": True},
    }

    def __init__(self) -> None:
        import paddle

        self.paddle = paddle
        self.version = str(paddle.__version__)

    def program(self) -> Train:
        nn, paddle = self.paddle.nn, self.paddle
        layers = [each for _ in range(LAYERS) for each in (nn.Linear(64, 64), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(64, 10))
        optimizer = paddle.optimizer.SGD(0.01, model.parameters())
        inputs, targets = paddle.randn([32, 64]), paddle.randint(0, 10, [32])

        def train(steps: int) -> None:
            for _ in range(steps):
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                optimizer.clear_grad()

        return train

    def own(self, folder: str, **options: Any) -> Any:
        """A profiler of Paddle's, which leaves the same protobuf that strobe takes."""
        import paddle.profiler as profiler

        ready = profiler.export_protobuf(folder)
        return profiler.Profiler(on_trace_ready=ready, **options)

    def table(self, own: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            own.summary()


class Jax:
    asked: ClassVar[dict[str, dict[str, Any]]] = {"plain": {}}

    def __init__(self) -> None:
        import jax

        self.jax = jax
        self.version = str(jax.__version__)

    def program(self) -> Train:
        jax, jnp = self.jax, self.jax.numpy

        @jax.jit
        def update(weights: Any, inputs: Any) -> Any:
            def loss(weights: Any) -> Any:
                found = inputs
                for each in weights:
                    found = jnp.tanh(found @ each)
                return jnp.mean(found**2)

            value, gradients = jax.value_and_grad(loss)(weights)
            return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], value

        held = {"weights": [jnp.ones((64, 64)) / 64 for _ in range(LAYERS)]}
        inputs = jnp.ones((32, 64))

        def train(steps: int) -> None:
            for _ in range(steps):
                held["weights"], value = update(held["weights"], inputs)
                value.block_until_ready()

        return train

    def own(self, folder: str) -> Any:
        return self.jax.profiler.trace(folder)


def main() -> None:
    framework = {"jax": Jax, "paddle": Paddle}[sys.argv[1]]()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 25
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 500
    train = framework.program()
    train(5)
    results: dict[str, Any] = {"framework": sys.argv[1], "version": framework.version}
    with tempfile.TemporaryDirectory() as folder:
        results |= measure_stop(framework, train, folder, steps)
        python, sys.executable = sys.executable, ""  # no finalizer beside the measurement
        results |= measure_steps(framework, train, folder, rounds)
        sys.executable = python
    json.dump(results, sys.stdout)


def measure_steps(framework: Any, train: Train, folder: str, rounds: int) -> dict[str, Any]:
    ways: dict[str, Any] = {"bare": contextlib.nullcontext}
    kept = {f"strobe, {asked}": Kept(folder, each) for asked, each in framework.asked.items()}
    for asked, options in framework.asked.items():
        ways[f"own, {asked}"] = lambda options=options: framework.own(folder, **options)
    ways |= kept
    spent = interleave(train, ways, rounds)
    return {
        "rounds": rounds,
        "own": own_times(kept, spent, train),
        "bare_us": statistics.median(spent["bare"]),
        "added_us": medians(spent),
        "ratios": {
            asked: compare(spent, f"strobe, {asked}", f"own, {asked}") for asked in framework.asked
        },
    }


def measure_stop(framework: Any, train: Train, folder: str, steps: int) -> dict[str, Any]:
    """Return how long stop() takes, alternating, and what comes after it until there is a table."""
    stops: dict[str, list[float]] = {"strobe": [], "own": []}
    found: dict[str, Any] = {"steps": steps}
    for _ in range(3):
        gc.collect()
        own = framework.own(folder)
        stops["own"].append(stop_ms(own, train, steps))
        if "own_table_s" not in found and hasattr(framework, "table"):
            began = time.perf_counter()
            framework.table(own)
            found["own_table_s"] = time.perf_counter() - began
        del own
        gc.collect()
        ours = strobe.Profiler(output=Path(folder) / "ours")
        stops["strobe"].append(stop_ms(ours, train, steps))
        began = time.perf_counter()
        ours.recording.operators()
        found.setdefault("table_s", []).append(time.perf_counter() - began)
        found["events"] = ours.recording.spans().collect().height
    found["table_s"] = statistics.median(found["table_s"])
    return {**found, "stop_ms": {name: statistics.median(each) for name, each in stops.items()}}


def stop_ms(profiler: Any, train: Train, steps: int) -> float:
    profiler.__enter__()
    train(steps)
    began = time.perf_counter()
    profiler.__exit__(None, None, None)
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
