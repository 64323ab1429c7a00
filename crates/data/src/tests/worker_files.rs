//! Tests data whose files are on the workers: the samples are the same, and files that differ are
//! reported.

use super::*;
use crate::{
    ColumnsSource, ColumnsSpec, InputColumns, LearnedColumn, LearnedTable, Missing, TargetColumn,
    Tokenizer, Transform,
};
use pipeline::samples::DataSpec;

/// Makes a boss's folder and a worker's, with the same files.
fn two(files: &[(&str, Vec<u8>)]) -> [Folder; 2] {
    let folders = [Folder::new(), Folder::new()];
    for folder in &folders {
        files.iter().for_each(|(name, bytes)| drop(folder.file(name, bytes)));
    }
    folders
}

fn digits() -> Vec<(&'static str, Vec<u8>)> {
    let pixels: Vec<u8> = (0..60).collect();
    vec![
        ("data/images", idx(&[10, 2, 3], &pixels)),
        ("data/labels", idx(&[10], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])),
    ]
}

fn idx_source(folder: &Folder) -> Source {
    Source::Idx { images: folder.path("data/images"), labels: folder.path("data/labels") }
}

fn normalize() -> Normalize {
    Normalize { input: None, divide: 255.0, mean: vec![0.1307], std: vec![0.3081] }
}

/// Opens data for workers. Returns it with the description that a worker receives.
fn told(
    folder: &Folder,
    source: &Source,
    model: &LayerGraph,
    normalize: Option<&Normalize>,
) -> (Dataset, DataSpec) {
    let data = Dataset::open(source, model, &CLASSES, normalize)
        .unwrap()
        .for_workers(folder.0.path())
        .unwrap();
    let spec = data.spec(model).unwrap();
    (data, spec)
}

fn described(spec: &DataSpec, folder: &Folder) -> Result<Dataset, DataError> {
    Dataset::from_description(&spec.description, spec.id, folder.0.path())
}

#[test]
fn a_worker_reads_what_the_boss_would_send() {
    let [boss, worker] = two(&digits());
    let model = model("6");
    let (data, spec) = told(&boss, &idx_source(&boss), &model, Some(&normalize()));
    let sent = Dataset::open(&idx_source(&boss), &model, &CLASSES, Some(&normalize())).unwrap();
    let sent = sent.batch(&[7, 3, 9, 0]).unwrap();
    let there = described(&spec, &worker).unwrap();
    let x = there.input(0, &[7, 3, 9, 0], 1..3).unwrap();
    assert!(x.equal(&sent.x().narrow(0, 1, 2)) && x.kind() == Kind::Float);
    assert!(there.target(&[7, 3, 9, 0], 1..3).unwrap().equal(&sent.y().narrow(0, 1, 2)));
    assert!(there.input(1, &[7], 0..1).is_err() && there.input(0, &[10], 0..1).is_err());
    // The boss knows the batch's sizes and its classes, and carries nothing else.
    let numbers = data.batch(&[7, 3]).unwrap().into_indices();
    assert_eq!(
        (numbers.data.sizes(&numbers.batch).unwrap(), numbers.next),
        (vec![vec![2, 6]], vec![])
    );
    assert!(numbers.target.unwrap().equal(&Tensor::from_slice(&[7i64, 3])));
}

#[test]
fn sequences_are_padded_as_in_their_whole_batch() {
    let lines = "a\tbb\ncccc\td\nee\tfff\n";
    let [boss, worker] = two(&[("pairs.tsv", lines.into())]);
    let model = super::text::pairs_model();
    let source = Source::Pairs(super::text::pairs(boss.path("pairs.tsv")));
    let (data, spec) = told(&boss, &source, &model, None);
    let sent = Dataset::open(&source, &model, &CLASSES, None).unwrap().batch(&[0, 1, 2]).unwrap();
    let there = described(&spec, &worker).unwrap();
    for part in [0..1, 1..3] {
        let (start, len) = (part.start as i64, part.len() as i64);
        let of = |whole: &Tensor| whole.narrow(0, start, len);
        assert!(there.input(0, &[0, 1, 2], part.clone()).unwrap().equal(&of(sent.x())));
        for (place, name) in [(1, "given"), (2, "source_padding")] {
            let expected = of(sent.tensors().2.get(name).unwrap());
            assert!(
                there.input(place, &[0, 1, 2], part.clone()).unwrap().equal(&expected),
                "{name}"
            );
        }
        assert!(there.target(&[0, 1, 2], part).unwrap().equal(&of(sent.y())));
    }
    assert_eq!(data.sizes(&[0, 1, 2]).unwrap(), [[3, 5], [3, 4], [3, 5]]);
}

#[test]
fn a_split_keeps_its_samples_and_batches_say_what_comes_next() {
    let [boss, _] = two(&digits());
    let (data, _) = told(&boss, &idx_source(&boss), &model("6"), None);
    let (train, validation) = data.split(0.3, 1).unwrap();
    assert_eq!((train.id(), train.samples() + validation.samples()), (validation.id(), 10));
    let samples = train.samples() as usize;
    let mut batches = Batches::new(train, 4, Some(5));
    let taken: Vec<SampleIndices> =
        (0..6).map(|_| batches.next_batch().unwrap().into_indices()).collect();
    assert!(taken.windows(2).all(|pair| pair[0].next == pair[1].batch));
    let epoch = samples.div_ceil(4);
    let mut seen =
        taken[..epoch].iter().flat_map(|numbers| numbers.batch.clone()).collect::<Vec<_>>();
    seen.extend((0..validation.samples() as i64).map(|number| validation.number(number).unwrap()));
    seen.sort();
    assert!(seen.into_iter().eq(0..10));
}

#[test]
fn other_files_are_named() {
    let [boss, worker] = two(&digits());
    let (_, spec) = told(&boss, &idx_source(&boss), &model("6"), None);
    let error = |worker: &Folder| worker.error(described(&spec, worker));
    worker.file("data/labels", idx(&[9], &[0; 9]));
    assert_eq!(
        error(&worker),
        "data/labels: has 17 bytes, but the boss's has 18; give both the same files"
    );
    worker.file("data/labels", idx(&[10], &[0; 10]));
    let others = ": something of what is read there, from data/images to data/labels, has other \
                  contents than the boss's; give both the same files";
    assert!(error(&worker).ends_with(others), "{}", error(&worker));
    std::fs::remove_file(worker.path("data/labels")).unwrap();
    assert_eq!(error(&worker), "data/labels: No such file or directory (os error 2)");
}

#[test]
fn pictures_of_other_names_or_contents_are_others() {
    let dot = |rgb: [u8; 3]| {
        let mut png = std::io::Cursor::new(Vec::new());
        image::RgbImage::from_pixel(1, 1, image::Rgb(rgb))
            .write_to(&mut png, image::ImageFormat::Png)
            .unwrap();
        png.into_inner()
    };
    let pictures = [
        ("ant/a.png", dot([1, 2, 3])),
        ("ant/b.png", dot([4, 5, 6])),
        ("cat/a.png", dot([7, 8, 9])),
    ];
    let [boss, worker] = two(&pictures.clone().map(|(name, png)| (name, png)));
    for folder in [&boss, &worker] {
        pictures.iter().for_each(|(name, png)| drop(folder.file(&format!("pictures/{name}"), png)));
    }
    let source = Source::File(boss.path("pictures"));
    let (_, spec) = told(&boss, &source, &model("3"), None);
    assert_eq!(described(&spec, &worker).unwrap().samples(), 3);
    worker.file("pictures/ant/b.png", dot([4, 5, 7]));
    let error = worker.error(described(&spec, &worker));
    assert!(
        error.contains("from pictures/ant/a.png to pictures/cat/a.png, has other contents"),
        "{error}"
    );
    worker.file("pictures/ant/b.png", dot([4, 5, 6]));
    assert!(described(&spec, &worker).is_ok());
    std::fs::rename(worker.path("pictures/ant/b.png"), worker.path("pictures/ant/c.png")).unwrap();
    assert!(described(&spec, &worker).is_err());
}

#[test]
fn nothing_outside_of_the_folder_is_read() {
    let [boss, worker] = two(&digits());
    let outside = Folder::new();
    let source = Source::Idx {
        images: boss.path("data/images"),
        labels: outside.file("labels", idx(&[10], &[0; 10])),
    };
    let data = Dataset::open(&source, &model("6"), &CLASSES, None).unwrap();
    let refused = data.for_workers(boss.0.path()).unwrap_err().to_string();
    assert!(
        refused.contains("is not below") && refused.contains("so workers do not know it"),
        "{refused}"
    );
    // A hostile boss may name such a path all the same.
    let (_, spec) = told(&boss, &idx_source(&boss), &model("6"), None);
    for path in ["../x/images", "/etc/host", "data/../../"] {
        let mut bytes = spec.description.clone();
        let at = bytes.windows(11).position(|window| window == b"data/images").unwrap();
        let path: Vec<u8> = path.bytes().chain(std::iter::repeat(b'/')).take(11).collect();
        bytes[at..at + 11].copy_from_slice(&path);
        let error = worker.error(Dataset::from_description(&bytes, spec.id, worker.0.path()));
        assert!(error.contains("which leads out of the folder"), "{error}");
    }
    let error =
        worker.error(Dataset::from_description(&spec.description[1..], spec.id, worker.0.path()));
    assert!(error.starts_with("a description of data is wrong"), "{error}");
    let error =
        worker.error(Dataset::from_description(&vec![0; 2 << 20], spec.id, worker.0.path()));
    assert!(error.contains("at most 1048576 are allowed"), "{error}");
}

/// If only parts of the data are digested, a difference of more than a few hundred kilobytes is
/// still always found.
#[test]
fn large_files_are_compared_in_parts() {
    let [boss, worker] = two(&[("labels", idx(&[1], &[0]))]);
    let size = 300u64 << 20;
    let long = |folder: &Folder, at: u64, byte: u8, times: usize| {
        use std::io::{Seek, SeekFrom, Write};
        let header = idx(&[u32::try_from(size).unwrap() - 8], &[]);
        let mut file = std::fs::File::create(folder.path("images")).unwrap();
        file.write_all(&header).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&vec![byte; times]).unwrap();
        file.set_len(size).unwrap();
    };
    // Each row is one byte, so both files need the same number of rows.
    for folder in [&boss, &worker] {
        let mut labels = std::fs::File::create(folder.path("labels")).unwrap();
        std::io::Write::write_all(&mut labels, &idx(&[u32::try_from(size).unwrap() - 8], &[]))
            .unwrap();
        labels.set_len(size).unwrap();
        long(folder, size / 2, 0, 1);
    }
    let source = Source::Idx { images: boss.path("images"), labels: boss.path("labels") };
    let (_, spec) = told(&boss, &source, &model("1"), None);
    assert!(described(&spec, &worker).is_ok());
    for (at, times) in [(100, 1), (size / 2, 200 << 10), (size - (200 << 10), 200 << 10)] {
        long(&worker, at, 1, times);
        assert!(described(&spec, &worker).is_err(), "a change at {at}");
    }
}

#[test]
fn tokenizers_and_tables_go_along() {
    let place = |path: &Path| Ok(Path::new("/elsewhere").join(path));
    let table = Table::with_default_names("a/t".into());
    let text = Text {
        paths: vec!["a/x".into()],
        tokenizer: Tokenizer::File("a/k".into()),
        sequence_length: 3,
        eos: Vec::new(),
    };
    let mut both = super::text::pairs("a/p".into());
    both.target_tokenizer = Some(Tokenizer::File("a/k".into()));
    let npy = Source::Npy { inputs: [("x".into(), "a/n".into())].into(), target: "a/y".into() };
    let tables = [Source::Npz, Source::Safetensors, Source::Jsonl, Source::Parquet]
        .map(|of| of(table.clone()));
    for source in tables.into_iter().chain([
        npy,
        Source::Text(text),
        Source::Pairs(both),
        Source::File("a/f".into()),
        Source::Columns(Box::new(named("a/c.csv".into()))),
    ]) {
        let files = source.with_paths(&place).unwrap().files().unwrap();
        assert!(
            !files.is_empty() && files.iter().all(|file| file.starts_with("/elsewhere/a")),
            "{files:?}"
        );
        let count = format!("{source:?}").matches("\"a/").count();
        assert_eq!(files.len(), count, "{source:?}: {files:?}");
    }
}

fn named(path: std::path::PathBuf) -> ColumnsSource {
    let spec = ColumnsSpec {
        inputs: InputColumns::Only(vec!["a".into()]),
        target: TargetColumn { column: "y".into(), transform: Transform::None },
        id: None,
        missing: Missing::Error,
        normalize: false,
    };
    ColumnsSource { path, spec, learned: None }
}

#[test]
fn what_was_learned_of_a_table_goes_along() {
    let train = b"a,y\nx,1\ny,2\nz,3\n".to_vec();
    let [boss, worker] = two(&[("train.csv", train), ("test.csv", b"a,y\nz,5\n".to_vec())]);
    let text = "{inputs: {x: [batch, 3]}, layers: [{Linear: {in_features: 3, out_features: 1}}]}";
    let model = LayerGraph::from_yaml(text, "model").unwrap();
    let learned = named(boss.path("train.csv")).learn().unwrap();
    let mut table = ColumnsSource { learned: Some(learned), ..named(boss.path("test.csv")) };
    let open = |table: &ColumnsSource| {
        let source = Source::Columns(Box::new(table.clone()));
        let data = Dataset::open(&source, &model, &pipeline::LossSpec::MSELoss, None).unwrap();
        data.for_workers(boss.0.path())
    };
    let spec = open(&table).unwrap().spec(&model).unwrap();
    let there = described(&spec, &worker).unwrap();
    // `z` is the third of the categories of the table to train on.
    assert_eq!(numbers(&there.input(0, &[0], 0..1).unwrap()), [0.0, 0.0, 1.0]);

    // A description that no worker would take is refused before it is sent.
    let categories = (0..2000).map(|n| format!("{n:0>1000}"));
    let categories = ["x".into(), "y".into(), "z".into()].into_iter().chain(categories);
    let mut large = LearnedTable::default();
    large
        .columns
        .insert("b".into(), LearnedColumn::Text { categories: categories.collect(), fill: None });
    large.columns.extend(table.learned.take().unwrap().columns);
    table.learned = Some(large);
    let refused = open(&table).unwrap_err().to_string();
    assert!(refused.starts_with("workers cannot read this data themselves: its"), "{refused}");
    assert!(
        refused.ends_with("let the boss send the samples (leave out `on: workers`)"),
        "{refused}"
    );
}
