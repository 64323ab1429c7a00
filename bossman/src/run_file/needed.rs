//! Keys that a run file need not have, for commands that need them.

use super::{Data, Length, RunFile};
use crate::data::{Source, Text, Tokenizer};
use crate::BossManError;

impl RunFile {
    /// The run's data.
    ///
    /// # Errors
    /// There is none. The error has the lines to add.
    pub fn data(&self) -> Result<&Data, BossManError> {
        self.data.as_ref().ok_or_else(|| self.lacks_data())
    }

    /// The length of training.
    ///
    /// # Errors
    /// The run has no data, so it need not have a length.
    pub fn length(&self) -> Result<Length, BossManError> {
        self.length.ok_or_else(|| self.lacks_data())
    }

    /// The texts to train on, for their tokenizer. Without such data, that of the key `tokenizer`,
    /// without files. `None` if there is neither.
    pub fn text(&self) -> Option<Text> {
        match (&self.data, &self.tokenizer) {
            (Some(Data { train: Source::Text(text), .. }), _) => Some(text.clone()),
            (_, text) => text.clone(),
        }
    }

    fn lacks_data(&self) -> BossManError {
        let tokenizer = match self.tokenizer.as_ref().map(|text| &text.tokenizer) {
            Some(Tokenizer::File(path)) => path.display().to_string(),
            _ => "bytes".into(),
        };
        let problem = format!(
            "has no `data`, which this command needs. Add it, and the length of training, as:\n  \
             data: {{train: {{text: {{path: FILE, tokenizer: {tokenizer}, sequence_length: \
             128}}}}}}\n  steps: 100"
        );
        BossManError::file(self.loss_place.file(), problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "model: m.yaml\nloss: MSELoss\noptimizer: {SGD: {lr: 0.1}}\nbatch_size: 4\n";

    fn read(text: &str) -> RunFile {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run.yaml");
        std::fs::write(&path, text).unwrap();
        RunFile::from_file(&path).unwrap()
    }

    #[test]
    fn a_run_without_data_says_which_lines_to_add() {
        let run = read(RUN);
        assert_eq!(run.text(), None);
        for error in [run.data().unwrap_err(), run.length().unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("run.yaml: has no `data`") && error.contains("\n  steps: 100"));
        }
        let steps = read(&format!("{RUN}steps: 5\ntokenizer: bytes\n"));
        assert_eq!(steps.length().unwrap(), Length::Steps(5));
        assert_eq!(steps.text().unwrap().tokenizer, Tokenizer::Bytes);
    }

    #[test]
    fn it_is_written_and_read_back() {
        let more = "tokenizer: {path: t.json, sequence_length: 64, eos: <end>}\n";
        let texts = [
            RUN.to_string(),
            format!("{RUN}tokenizer: t.json\nepochs: 2\n"),
            RUN.to_string() + more,
            RUN.to_string() + &more.replace("<end>", "[<end>, <turn>]"),
        ];
        for text in texts {
            let run = read(&text).with_absolute_paths().unwrap();
            assert_eq!(read(&run.to_yaml()), run);
        }
    }

    #[test]
    fn texts_to_train_on_come_first() {
        let data = "data: {train: {text: {path: a.txt, sequence_length: 8}}}\nsteps: 1\n";
        let run = read(&format!("{RUN}{data}tokenizer: t.json\n"));
        assert_eq!(run.text().unwrap().sequence_length, 8);
    }
}
