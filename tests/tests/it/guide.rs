//! Runs the commands of the guide, chapter by chapter, as a reader would.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::programs::{free_port, program, Process, TestFolder};
use tokio::process::Command;

/// The time limit of one command, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(240);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the text of the code blocks of this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let rest: Vec<&str> = page.split(begin.as_str()).skip(1).collect();
    rest.into_iter().filter_map(|rest| rest.split("\n```").next()).collect()
}

/// A reader's folder, with the digits in it.
struct Reader {
    place: TestFolder,
    port: String,
}

impl Reader {
    fn new() -> Self {
        let place = TestFolder::new();
        let digits = place.file("examples/digits");
        std::fs::create_dir_all(&digits).unwrap();
        for file in std::fs::read_dir(root().join("examples/digits")).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), digits.join(file.file_name())).unwrap();
        }
        // The same run, but a short one.
        let run = std::fs::read_to_string(digits.join("run.yaml")).unwrap();
        std::fs::write(digits.join("run.yaml"), run.replace("epochs: 20", "epochs: 1")).unwrap();
        Reader { place, port: free_port() }
    }

    fn start(&self, name: &str, arguments: &[&str]) -> Process {
        let mut command = Command::new(program(name));
        command.current_dir(self.place.file(""));
        let runs = self.place.file("runs");
        let environment =
            [("MODEL_PORT", self.port.as_str()), ("BOSSMAN_RUNS_DIR", runs.to_str().unwrap())];
        self.place.start_by(command, name, arguments, &environment)
    }

    /// Writes the files that a chapter shows, and runs its commands. Returns their number.
    async fn read(&self, chapter: &str) -> usize {
        let page = std::fs::read_to_string(root().join("docs/guide").join(chapter)).unwrap();
        for block in blocks(&page, "yaml") {
            let title = block.lines().next().and_then(|line| line.strip_prefix("# "));
            if let Some(file) = title.filter(|name| name.ends_with(".yaml")) {
                std::fs::write(self.place.file(file), block).unwrap();
            }
        }
        let lines = blocks(&page, "console").into_iter().flat_map(str::lines);
        let commands: Vec<&str> =
            lines.filter_map(|line| line.strip_prefix("target/release/bossman ")).collect();
        for command in &commands {
            self.run(command).await;
        }
        commands.len()
    }

    /// Runs a command of the boss, with the workers that it waits for.
    async fn run(&self, command: &str) {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        // Other tests use the cores, too, and threads that wait for each other are slow there.
        if arguments.contains(&"--local") {
            arguments.extend(["--threads", "1"]);
        }
        let mut boss = self.start("bossman", &arguments);
        let wanted = arguments.iter().skip_while(|word| **word != "--workers").nth(1);
        let wanted = wanted.map_or(0, |number| number.parse().unwrap());
        if wanted > 0 {
            boss.line("MODEL_TICKET=").await;
        }
        let workers: Vec<Process> =
            (0..wanted).map(|_| self.start("worker", &["--threads", "1"])).collect();
        boss.end_within(LIMIT).await.expect_success();
        for worker in workers {
            worker.end().await.expect_success();
        }
    }
}

#[tokio::test]
async fn the_first_run_and_two_machines() {
    let reader = Reader::new();
    assert_eq!(reader.read("first-run.md").await, 3);
    for file in ["runs/digits/metrics.jsonl", "runs/latest/weights.safetensors", "outputs.csv"] {
        assert!(reader.place.file(file).is_file(), "{file}");
    }
    assert_eq!(reader.read("two-machines.md").await, 1);
}

#[tokio::test]
async fn your_own_data_model_and_schedule() {
    let reader = Reader::new();
    assert_eq!(reader.read("your-data.md").await, 3);
    assert!(reader.place.file("runs/my-run/weights.best.safetensors").is_file());
    assert_eq!(reader.read("your-model.md").await, 2);
    assert_eq!(reader.read("schedules.md").await, 2);
    assert!(reader.place.file("trace.json").is_file());
}

#[tokio::test]
async fn replicas_pools_and_recovery() {
    let reader = Reader::new();
    assert_eq!(reader.read("replicas.md").await, 2);
    assert_eq!(reader.read("pools.md").await, 1);
    assert_eq!(reader.read("recovery.md").await, 4);
}

/// Splits a command at spaces outside quotes.
fn split(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    parts.fold(Vec::new(), |mut words, (index, part)| {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(String::from)),
            _ => words.push(part.to_string()),
        }
        words
    })
}

/// Returns the Markdown files of the user's pages.
fn pages() -> Vec<PathBuf> {
    let docs = ["docs", "docs/guide", "docs/reference"].map(|folder| root().join(folder));
    let files = docs.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|e| e == "md"));
    pages.chain([root().join("README.md")]).collect()
}

/// The programs understand every command that a page shows: with `--help` at its end, each prints
/// its help, but a flag or value that it does not know is an error.
#[tokio::test]
async fn the_programs_understand_every_command() {
    let place = TestFolder::new();
    let mut understood = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for line in blocks(&text, "console").into_iter().flat_map(str::lines) {
            let words = split(line);
            let mut words = words.iter().map(String::as_str).skip_while(|word| word.contains('='));
            let name = words.next().unwrap().rsplit('/').next().unwrap();
            if name == "bossman" || name == "worker" {
                let arguments: Vec<&str> = words.chain(["--help"]).collect();
                let ended = place.start(name, &arguments).end_within(LIMIT).await;
                assert!(ended.status.success(), "{}: `{line}`: {:?}", page.display(), ended.errors);
                understood += 1;
            }
        }
    }
    assert!(understood > 30, "{understood} commands");
}
