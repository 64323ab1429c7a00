"""A boss and workers as on machines of their own, each restarted when it ends, and faults that
strike them (`chaos.py`)."""

import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time

import programs
import star
from faults import NETWORK, Outcome
from pool import free_port, release
from programs import Problem

POLL_EVERY = 0.02  # seconds
PATIENCE = 120  # seconds without a step, after the last fault is over, until a run is said to hang
TO_LEAVE = 12  # seconds; it may be stopped for half of them
# What a process is sent by each fault that is one of a process.
HOW = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "pause": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "boss": signal.SIGKILL,
    "boss-stop": signal.SIGSTOP,
}
WORTH_TELLING = ("workers were lost", "recovery:", "resuming from", "turned away")


def bound(command):
    """The command of a process that ends when this one is killed, which then takes nobody away."""
    return [
        *(["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []),
        *map(str, command),
    ]


class Program:
    """A process of ours whose lines come to a queue."""

    def __init__(self, name, command, environment, heard):
        self.name, self.wanted = name, True
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        # Ctrl-C is for this program alone, which then ends the others.
        more = {"text": True, "errors": "replace", "start_new_session": True}
        self.process = subprocess.Popen(bound(command), env=environment, **pipes, **more)
        self.reader = threading.Thread(target=self.read, args=(heard,), daemon=True)
        self.reader.start()

    def read(self, heard):
        """Every line, with who said it."""
        for line in self.process.stdout:
            heard.put((self, line.rstrip()))

    def runs(self):
        """Whether it has not ended."""
        return self.process.poll() is None

    def send(self, how):
        """Sends a signal, if it has not ended."""
        if self.runs():
            self.process.send_signal(how)

    def end(self, how=signal.SIGKILL):
        """Ends it, as is wanted."""
        self.wanted = False
        self.send(how)


class Machine:
    """A worker's machine: what is at work there now, if anything is."""

    def __init__(self, number, line=None):
        self.number, self.line = number, line
        self.program, self.at_work, self.fault = None, False, None


class World:
    """A boss, workers, and their lines; what they said, and how far they came."""

    def __init__(self, folder, preset, asked, lines):
        self.folder, self.preset, self.asked = folder, preset, asked
        self.machines = [
            Machine(number, line)
            for number, line in enumerate(lines or [None] * (asked.workers + asked.spares))
        ]
        self.lines = lines
        self.port = "1024" if lines else free_port()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MODEL_", "BOSSMAN_"))
        }
        self.run, self.boss, self.over = None, None, False
        self.heard, self.due, self.leaving, self.said, self.surprises = (
            queue.Queue(),
            [],
            [],
            [],
            [],
        )
        self.began, self.log = time.monotonic(), (folder / "log").open("w", encoding="utf-8")
        self.step, self.moved = 0, time.monotonic()
        # Since the last strike: when it came, and the longest time without a step that had not been
        # done before.
        self.struck, self.still, self.stood = 0.0, 0.0, 0.0
        self.losses, self.bosses, self.recovering = 0, 0, False
        ticket = subprocess.run(
            [release("bossman"), "ticket"],
            env=self.boss_environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        self.ticket = re.search(r"bossman1-\S+", ticket.stdout)[0]

    def boss_environment(self):
        """The boss's environment."""
        folders = {"BOSSMAN_CONFIG_DIR": "boss", "BOSSMAN_RUNS_DIR": "runs"}
        return {
            **self.environment,
            **{name: str(self.folder / folder) for name, folder in folders.items()},
        }

    def start_boss(self, run=None):
        """Starts the boss, if none runs; it resumes if there is a checkpoint."""
        if self.boss:
            return
        self.run = run or self.run
        command = [
            release("bossman"),
            "train",
            self.run,
            "--workers",
            self.asked.workers,
            "--port",
            self.port,
        ]
        command += [
            "--metrics",
            self.folder / "metrics.jsonl",
            "--save",
            self.folder / "weights.safetensors",
        ]
        command += ["--transport", "quic"] if self.lines else []
        command += ["--resume=if-any"]
        self.boss = Program(
            "boss",
            star.inside(star.MIDDLE, command) if self.lines else command,
            self.boss_environment(),
            self.heard,
        )
        self.recovering = False

    def start_worker(self, machine):
        """Starts a worker that knows what one types on another machine, once the one before has
        left."""
        if machine.program and machine.program.wanted:
            return
        if machine.program:
            # Told to leave while it was stopped, or a moment ago.
            self.schedule(POLL_EVERY, lambda: self.start_worker(machine))
            return
        host = star.addresses(machine.number)[0] if self.lines else "127.0.0.1"
        environment = {
            **self.environment,
            "MODEL_HOST": host,
            "MODEL_PORT": self.port,
            "MODEL_TICKET": self.ticket,
        }
        environment.update({"BOSSMAN_CONFIG_DIR": str(self.folder / f"worker-{machine.number}")})
        command = [release("worker"), "--device", "cpu", "--threads", "1"]
        command = star.inside(star.end(machine.number), command) if self.lines else command
        machine.program, machine.at_work = (
            Program(f"worker {machine.number}", command, environment, self.heard),
            False,
        )

    def kill_leavers(self):
        """Kills a program that was told to leave and has not left."""
        for entry in [
            entry for entry in self.leaving if entry[0] <= time.monotonic() or not entry[1].runs()
        ]:
            self.leaving.remove(entry)
            if entry[1].runs():
                self.surprises.append(f"{entry[1].name} had not left {TO_LEAVE} s after SIGTERM")
                entry[1].end()

    def schedule(self, seconds, action):
        """Calls `action` after some seconds."""
        self.due.append((time.monotonic() + seconds, action))

    def log_line(self, who, line):
        """Writes down who said what, and when."""
        self.log.write(f"{time.monotonic() - self.began:8.2f} {who:8} {line}\n")
        self.log.flush()

    def poll(self):
        """One round of the loop: reads output, does what is due, and restarts programs that have
        ended."""
        time.sleep(POLL_EVERY)
        while not self.heard.empty():
            self.read_line(*self.heard.get())
        now = time.monotonic()
        for entry in [entry for entry in self.due if entry[0] <= now]:
            self.due.remove(entry)
            entry[1]()
        self.kill_leavers()
        # Before it is judged who has ended: workers may where all steps are done.
        step = last_step(self.folder / "metrics.jsonl")
        if step > self.step:
            self.still = max(self.still, now - max(self.moved, self.struck))
            self.step, self.moved = step, now
        for machine in self.machines:
            if machine.program and not machine.program.runs():
                self.lost_worker(machine)
        if self.boss and not self.boss.runs():
            self.lost_boss()
        if not self.due and not self.over and now - self.moved > PATIENCE:
            raise Problem(f"the run has hung for {PATIENCE} s, {self.step} steps done")

    def read_line(self, program, line):
        """A line of output of one program."""
        self.log_line(program.name, line)
        for machine in self.machines:
            if machine.program is program and line.startswith(
                ("joined the boss", "waiting for the boss")
            ):
                machine.at_work = line.startswith("joined")
        if program is not self.boss:
            return
        if any(text in line for text in WORTH_TELLING):
            self.said.append(line)
        if "workers were lost" in line:
            self.losses, self.recovering = self.losses + 1, True
        if "recovery: repeated" in line:
            self.recovering = False

    def lost_worker(self, machine):
        """A worker has ended: another is started, at once if this one was not told to end."""
        program, machine.program, machine.at_work = machine.program, None, False
        code = program.process.returncode
        self.log_line(program.name, f"(ended with {code})")
        if program.wanted and not (code == 0 and self.ending()):
            self.surprises.append(
                f"{program.name} ended by itself with {code} at "
                f"{time.monotonic() - self.began:.1f} s"
            )
        if program.wanted and not self.ending():
            self.schedule(1.0, lambda: self.start_worker(machine))

    def ending(self):
        """Whether all steps are done."""
        return self.over or (self.boss is not None and self.step >= self.asked_steps())

    def asked_steps(self):
        """The number of steps of this run."""
        return int(re.search(r"(?m)^steps: (\d+)", self.run.read_text(encoding="utf-8"))[1])

    def lost_boss(self):
        """The boss has ended: by a fault, with its work, or with an error."""
        boss, self.boss = self.boss, None
        boss.reader.join(timeout=5)
        while not self.heard.empty():
            self.read_line(*self.heard.get())
        self.log_line("boss", f"(ended with {boss.process.returncode})")
        if boss.wanted and boss.process.returncode == 0:
            self.over = True
        elif boss.wanted:
            raise Problem(f"the run ended with {boss.process.returncode}, {self.step} steps done")

    def until(self, what, limit):
        """Looks until something holds or the run is over."""
        last = time.monotonic() + limit
        while not self.over and not what():
            if time.monotonic() > last:
                raise Problem(f"nothing for {limit} s, {self.step} steps done")
            self.poll()

    def wait(self, seconds):
        """Lets some seconds pass."""
        begin = time.monotonic()
        self.until(lambda: time.monotonic() - begin >= seconds, PATIENCE)

    def is_steady(self):
        """Whether all programs run and training makes progress."""
        return (
            not self.due
            and not self.recovering
            and self.boss
            and all(machine.program for machine in self.machines)
        )

    def strike(self, strike):
        """Strikes, and waits until the run has gone on: how it went."""
        self.wait(strike.wait)
        self.said, self.still, self.stood, self.struck, first = (
            [],
            0.0,
            0.0,
            time.monotonic(),
            self.step,
        )
        losses, bosses = self.losses, self.bosses
        whom = [self.inject(strike.faults[0])]
        for fault in strike.faults[1:]:
            self.wait(strike.between)
            whom.append(self.inject(fault))
        self.until(self.is_steady, 2 * PATIENCE)
        # One step may already have had all tensors of a lost worker.
        settled = self.step
        self.until(lambda: self.is_steady() and self.step >= settled + 2, 2 * PATIENCE)
        outcome = Outcome(
            strike, self.still, self.losses - losses + self.bosses - bosses, self.stood
        )
        said = "; ".join(re.sub("^warning: ", "", line) for line in self.said) or "nothing was said"
        at = self.struck - self.began
        print(
            f"{at:7.1f} s  step {first}: {' and '.join(whom)}: {outcome.still:.2f} s without a "
            f"step; {said}",
            flush=True,
        )
        return outcome

    def inject(self, fault):
        """One fault: what it did."""
        kind, seconds = fault.kind, fault.seconds
        at_work = [machine for machine in self.machines if machine.program and machine.at_work]
        there = (
            at_work or [machine for machine in self.machines if machine.program] or self.machines
        )
        machine = there[int(fault.whom * len(there))]
        program = self.boss if kind.startswith("boss") else machine.program
        name = "the boss" if kind.startswith("boss") else f"worker {machine.number}"
        if kind in NETWORK:
            trouble = {"loss": f"loss {fault.share:.3f}", "cut": "cut", "rate": "mbit 1"}[kind]
            machine.line.set_fault(trouble)
            machine.fault = fault
            self.schedule(seconds, lambda: self.repair(machine, fault))
            what = f"{trouble} on the line of {name} for {seconds:.1f} s"
        elif program is None:
            what = f"{HOW[kind].name} of {name}, which is not there"
        elif HOW[kind] == signal.SIGSTOP:
            program.send(HOW[kind])
            self.schedule(seconds, lambda stopped=time.monotonic(): self.resume(program, stopped))
            what = f"{HOW[kind].name} of {name} for {seconds:.1f} s"
        else:
            what = f"{HOW[kind].name} of {name}, away for {seconds:.1f} s"
            program.end(HOW[kind])
            if kind == "term":
                self.leaving.append((time.monotonic() + TO_LEAVE, program))
            if kind == "boss":
                self.bosses += 1
                self.schedule(seconds, self.start_boss)
            else:
                self.schedule(seconds, lambda: self.start_worker(machine))
        self.log_line("fault", what)
        return what

    def resume(self, program, stopped):
        """Continues a program that was stopped at this time."""
        program.send(signal.SIGCONT)
        self.stood = max(self.stood, time.monotonic() - stopped)

    def repair(self, machine, fault):
        """A line's fault is over, unless another came since."""
        if machine.fault is fault:
            machine.line.set_fault("clear")

    def end(self):
        """Nobody is left."""
        for program in [self.boss, *(machine.program for machine in self.machines)]:
            if program:
                program.end()
                programs.end(program.process)
        self.log.close()


def last_step(path):
    """The number of the last step in the metrics."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            steps = re.findall(rb'\{"step":(\d+),"loss"[^\n]*\n', file.read())
    except OSError:
        return 0
    return int(steps[-1]) if steps else 0
