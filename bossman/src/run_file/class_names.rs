//! The names of the classes of pictures: resolved once, from the data to train on, so that a class
//! has the same number in every part.

use super::{Data, RunFile, Validation};
use crate::data::{DataError, Source};
use crate::BossManError;

impl RunFile {
    /// The same run, whose pictures have the classes of the data to train on.
    ///
    /// # Errors
    /// The folder to train on cannot be read, or a part lists other classes.
    pub(super) fn with_class_names(mut self) -> Result<Self, BossManError> {
        let Some(data) = &mut self.data else { return Ok(self) };
        check_names_are_there(data)?;
        let Some(names) = data.train.learn_classes()? else { return Ok(self) };
        for part in sources(data) {
            check_same(part, &names)?;
            let unnamed = std::mem::replace(part, Source::File(part.path().to_path_buf()));
            *part = unnamed.with_classes(&names);
        }
        Ok(self)
    }
}

/// Checks that the folder to train on is there, if only it names the classes of a part.
fn check_names_are_there(data: &mut Data) -> Result<(), DataError> {
    let folder = data.train.path().to_path_buf();
    let lists = matches!(data.train, Source::Images { classes: Some(_), .. });
    if lists || folder.try_exists().map_err(|e| DataError::io(&folder, &e))? {
        return Ok(());
    }
    let has_pictures = |part: &&mut Source| part.path().is_dir() && part.path() != folder;
    match sources(data).find(has_pictures) {
        Some(part) => {
            let problem = format!(
                "there is no such folder, and it names the classes of {}; put it there, or list \
                 them: {{images: {{folder: .., classes: [..]}}}}",
                part.path().display()
            );
            Err(DataError::file(&folder, problem))
        }
        None => Ok(()),
    }
}

/// The sources of all parts.
fn sources(data: &mut Data) -> impl Iterator<Item = &mut Source> {
    let validation = match &mut data.validation {
        Some(Validation::Source(source)) => Some(source.as_mut()),
        _ => None,
    };
    [Some(&mut data.train), validation, data.test.as_mut()].into_iter().flatten()
}

/// Checks that a part lists the classes of the data to train on, if it lists any.
fn check_same(part: &Source, names: &[String]) -> Result<(), DataError> {
    match part {
        Source::Images { folder, classes: Some(classes) } if classes != names => {
            let first = classes.iter().zip(names).position(|(own, name)| own != name);
            let problem = match first.and_then(|n| Some((n, classes.get(n)?, names.get(n)?))) {
                Some((number, own, name)) => {
                    format!("class {number} is `{own}`, and `{name}` in the data to train on")
                }
                None => format!(
                    "has {} `classes`, and the data to train on has {}",
                    classes.len(),
                    names.len()
                ),
            };
            Err(DataError::file(folder, format!("{problem}; leave `classes` out here")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_file::data_parts::Part;
    use crate::run_file::test_picture::picture;
    use crate::Model;
    use std::path::Path;

    const MODEL: &str = "{inputs: {x: [batch, 3]}, layers: [Linear: {in_features: 3, \
                         out_features: 3}]}";

    fn run(folder: &Path, data: &str) -> RunFile {
        let path = folder.join("run.yaml");
        let text = format!(
            "model: m.yaml\ndata: {data}\nloss: CrossEntropyLoss\noptimizer: SGD\nbatch_size: 1\n\
             steps: 1\n"
        );
        std::fs::write(&path, text).unwrap();
        RunFile::from_file(&path).unwrap()
    }

    fn error(folder: &Path, result: Result<impl Sized, BossManError>) -> String {
        let error = result.err().unwrap().to_string();
        error.replace(&format!("{}/", folder.display()), "")
    }

    /// The label of the first sample of a part.
    fn label(run: &RunFile, part: Part) -> i64 {
        let data = run.part(part, &Model::from_yaml(MODEL).unwrap()).unwrap();
        data.target(&[0], 0..1).unwrap().int64_value(&[0])
    }

    #[test]
    fn parts_that_lack_a_class_have_the_numbers_of_the_data_to_train_on() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        for name in ["t/cat/1.png", "t/dog/1.png", "t/fox/1.png", "v/dog/1.png", "w/fox/1.png"] {
            picture(folder, name);
        }
        let run = run(folder, "{train: t, validation: {images: {folder: v}}, test: w}");
        assert_eq!((label(&run, Part::Validation), label(&run, Part::Test)), (1, 2));
        let parts = run.parts(&Model::from_yaml(MODEL).unwrap()).unwrap();
        let validation = parts.validation.unwrap().target(&[0], 0..1).unwrap();
        assert_eq!(validation.int64_value(&[0]), 1);
        picture(folder, "w/wolf/1.png");
        assert_eq!(
            error(folder, run.part(Part::Test, &Model::from_yaml(MODEL).unwrap())),
            "w/wolf: `wolf` is no class of the data to train on, which has cat, dog, fox"
        );
    }

    /// A run's folder has the run with its classes.
    #[test]
    fn a_run_goes_on_with_the_classes_that_it_began_with() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        ["t/0/1.png", "t/dog/1.png", "v/dog/1.png"].iter().for_each(|name| picture(folder, name));
        let begun = run(folder, "{train: t, validation: v}").learned().unwrap();
        std::fs::write(folder.join("run.yaml"), begun.to_yaml()).unwrap();
        let run = RunFile::from_file(folder.join("run.yaml")).unwrap();
        assert_eq!(run, begun);
        // The part does not need the data to train on.
        std::fs::rename(folder.join("t/dog"), folder.join("t/A_dog")).unwrap();
        assert_eq!(label(&run, Part::Validation), 1);
        assert_eq!(
            error(folder, run.part(Part::Train, &Model::from_yaml(MODEL).unwrap())),
            "t/A_dog: `A_dog` is no class of the data to train on, which has 0, dog"
        );
    }

    /// The part alone does not tell whether it has all classes.
    #[test]
    fn a_part_is_not_read_without_the_folder_that_names_its_classes() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        picture(folder, "v/dog/1.png");
        for train in ["t", "{images: {folder: t}}"] {
            let run = run(folder, &format!("{{train: {train}, test: v}}"));
            assert_eq!(
                error(folder, run.part(Part::Test, &Model::from_yaml(MODEL).unwrap())),
                "t: there is no such folder, and it names the classes of v; put it there, or list \
                 them: {images: {folder: .., classes: [..]}}"
            );
        }
        let listed = "{train: {images: {folder: t, classes: [cat, dog]}}, test: v}";
        assert_eq!(label(&run(folder, listed), Part::Test), 1);
    }

    #[test]
    fn classes_that_contradict_each_other_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        ["t/cat/1.png", "t/dog/1.png"].iter().for_each(|name| picture(folder, name));
        let listed = "{train: t, test: {images: {folder: t, classes: [dog, cat]}}}";
        assert_eq!(
            error(folder, run(folder, listed).learned()),
            "t: class 0 is `dog`, and `cat` in the data to train on; leave `classes` out here"
        );
        let all = "{train: {images: {folder: t, classes: [dog, cat]}}, test: t}";
        assert_eq!(label(&run(folder, all), Part::Test), 1);
    }
}
