//! `bossman runs` and `bossman log`: run folders, without workers.

use anyhow::Result;
use bossman::events::{Console, Event};
use bossman::output;
use bossman::runs::{resolve_newest, EventReader, RunFolder, RunState, RunSummary};
use bossman::train::describe_steps;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time between two looks at a log that is followed.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);
/// The most characters of a warning about a folder, which may be somebody else's.
const MAX_WARNING: usize = 1000;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bossman runs\n  bossman runs prune --keep 5")]
pub(crate) struct Runs {
    #[command(subcommand)]
    command: Option<RunsCommand>,
    /// The folder in which runs have their folders.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "BOSSMAN_RUNS_DIR",
        default_value = "runs"
    )]
    runs_dir: PathBuf,
    /// Print a line of JSON for each run.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum RunsCommand {
    /// Delete the folders of old runs, with their weights and checkpoints. A run that lasts stays.
    Prune {
        /// Keep the runs that changed last.
        #[arg(long, value_name = "N")]
        keep: usize,
    },
}

#[derive(clap::Args)]
#[command(after_help = "Example: bossman log runs/latest --follow")]
pub(crate) struct Log {
    /// The folder of a run.
    run: PathBuf,
    /// Wait for further events until the run ends.
    #[arg(long)]
    follow: bool,
    /// Print the events as JSON.
    #[arg(long)]
    json: bool,
}

impl Runs {
    pub(crate) fn run(self) -> Result<()> {
        if !self.runs_dir.is_dir() {
            anyhow::bail!(
                "{}: there is no such folder; `bossman train` makes it, or name it with --runs-dir",
                self.runs_dir.display()
            );
        }
        let runs = RunSummary::list(&self.runs_dir, |error| {
            output::warn(&output::printable(&format!("warning: {error}"), MAX_WARNING));
        })?;
        match self.command {
            Some(RunsCommand::Prune { keep }) => prune(&runs, keep),
            None if self.json => runs.iter().try_for_each(|run| {
                output::print_line(&serde_json::to_string(run)?)?;
                Ok(())
            }),
            None => {
                output::print(&table(&runs))?;
                Ok(())
            }
        }
    }
}

fn prune(runs: &[RunSummary], keep: usize) -> Result<()> {
    for run in runs.iter().skip(keep) {
        if RunFolder::delete(&run.path)? {
            output::print_line(&format!("deleted {}", run.path.display()))?;
        }
    }
    Ok(())
}

fn table(runs: &[RunSummary]) -> String {
    let titles = ["run", "state", "step", "loss", "best", "workers", "size", "resume"];
    let mut rows = vec![titles.map(String::from)];
    rows.extend(runs.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..titles.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(run: &RunSummary) -> [String; 8] {
    let steps = run.steps.map_or("-".into(), |steps| format!("{}/{steps}", run.step));
    let resume = match (&run.resumes_from, &run.why_not) {
        (Some(step), _) => format!("from step {step}"),
        (None, why) => format!("no: {}", why.as_deref().unwrap_or("unknown")),
    };
    let state = match &run.state {
        RunState::Failed { why } => format!("failed: {}", short(why)),
        state => state.to_string(),
    };
    [
        output::safe(&run.name),
        state,
        steps,
        run.loss.map_or("-".into(), |loss| format!("{loss:.4}")),
        run.best.as_ref().map_or("-".into(), |best| best.score.to_string()),
        run.workers.to_string(),
        layerspec::human::size(run.bytes),
        short(&resume),
    ]
}

/// The beginning of a text, safe for the terminal.
fn short(text: &str) -> String {
    let begin: String = text.chars().take(60).collect();
    let end = if begin.len() < text.len() { "..." } else { "" };
    output::safe(&begin).replace('\n', " ") + end
}

impl Log {
    pub(crate) fn run(self) -> Result<()> {
        let folder = resolve_newest(&self.run)?;
        if !folder.is_dir() {
            let what = match folder.exists() {
                true => "is a file; name the folder of a run",
                false => "there is no such folder",
            };
            anyhow::bail!("{}: {what}", folder.display());
        }
        let Some(mut reader) = EventReader::open(&folder)? else {
            anyhow::bail!("{}: is no run's folder: it has no events.jsonl", folder.display());
        };
        let mut shown = Shown::new();
        loop {
            // Asked before the rest is read, so that nothing is missed.
            let lasts = self.follow && is_running(&folder)?;
            while let Some(line) = reader.next_line()? {
                let has_reader = match self.json {
                    true => output::print_line(&output::safe(&line))?,
                    false => shown.show(&line)?,
                };
                if !has_reader {
                    return Ok(());
                }
            }
            if !lasts {
                shown.end()?;
                return Ok(());
            }
            std::thread::sleep(FOLLOW_EVERY);
        }
    }
}

fn is_running(folder: &Path) -> Result<bool> {
    Ok(bossman::runs::is_held(folder)?)
}

/// The console of a run that is over, or elsewhere.
struct Shown {
    console: Console,
    /// Now, and the time of the first event.
    begin: Option<(Instant, f64)>,
    /// The steps before those of the process whose events are shown, once it has begun.
    before: Option<u64>,
    /// A line each about the weights that were saved last, and the best. Each epoch saves some.
    weights: [Option<String>; 2],
}

impl Shown {
    fn new() -> Self {
        Shown { console: Console::without_bar(), begin: None, before: None, weights: [None, None] }
    }

    /// Prints the lines of an event. Returns whether they still have a reader.
    fn show(&mut self, line: &str) -> Result<bool> {
        let Some(logged) = bossman::runs::LoggedEvent::parse(line) else {
            return Ok(true);
        };
        let (begin, first) = *self.begin.get_or_insert((Instant::now(), logged.time));
        let after = Duration::try_from_secs_f64(logged.time - first).unwrap_or_default();
        let now = begin.checked_add(after).unwrap_or(begin);
        match logged.event {
            Event::Folder { .. } => self.before = None,
            Event::Started { done, .. } => drop(self.before.get_or_insert(done)),
            Event::WeightsSaved { step, ref path, best, .. } => {
                let what = if best { "best weights, of" } else { "weights of" };
                let line = format!("{what} step {step}: {}", path.display());
                self.weights[usize::from(best)] = Some(line);
            }
            _ => {}
        }
        let lines = self.console.lines(&logged.event, now);
        let mut lines: Vec<String> = lines.iter().map(|line| line.text().into()).collect();
        lines.extend(end_of(&logged.event, self.before.unwrap_or(0)));
        for line in lines {
            if !output::print_line(&output::safe(&format!(
                "{:9.1} s  {line}",
                after.as_secs_f64()
            )))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Prints where the weights are.
    fn end(&mut self) -> Result<()> {
        for line in self.weights.iter_mut().filter_map(Option::take) {
            if !output::print_line(&output::safe(&line))? {
                break;
            }
        }
        Ok(())
    }
}

/// A line for the events that a terminal shows in another way. `before` is the number of steps of
/// earlier processes.
fn end_of(event: &Event, before: u64) -> Option<String> {
    match event {
        Event::Planned { schedule, stages, why } => {
            Some(format!("schedule {schedule}, {} stages: {why}", stages.len()))
        }
        Event::Ended { steps, time, error: None } => Some(describe_steps(*steps, before, *time)),
        Event::Ended { error: Some(error), .. } => Some(format!("failed: {error}")),
        Event::Interrupted { step: Some(step), .. } => {
            Some(format!("interrupted after step {step}"))
        }
        Event::Interrupted { .. } => Some("interrupted".into()),
        Event::Tested { validation } => Some(format!("test {}", validation.score)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log may be somebody else's.
    #[test]
    fn a_log_of_any_numbers_and_characters_is_shown() {
        let mut shown = Shown::new();
        let started = "\"event\":\"started\",\"steps\":18446744073709551615,\"done\":0,\
                       \"from\":null,\"microbatches\":2,\"metrics_bytes\":0";
        let step = "\"event\":\"step\",\"step\":1,\"loss\":0.5,\"samples\":18446744073709551615,\
                    \"tokens\":null,\"step_ms\":1.0,\"lr\":null,\"grad_norm\":null";
        for (time, event) in [(0.0, started), (1e9, step), (1e19, step), (1e300, step)] {
            assert!(shown.show(&format!("{{\"time\":{time},\"version\":1,{event}}}")).unwrap());
        }
        assert_eq!(short(&"\n".repeat(61)), " ".repeat(60) + "...");
    }
}
