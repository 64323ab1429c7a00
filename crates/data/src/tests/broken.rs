//! Tests wrong files: each yields an error that names the problem, and none causes a panic.

use super::*;
use crate::{ColumnsSource, ColumnsSpec, InputColumns, Missing, TargetColumn, Transform};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn mistakes_in_files_are_named() {
    let folder = Folder::new();
    let labels = folder.file("labels", idx(&[2], &[0, 1]));
    let images = |name: &str, bytes: Vec<u8>| Source::Idx {
        images: folder.file(name, bytes),
        labels: labels.clone(),
    };
    let file = |name: &str, bytes: &[u8]| Source::File(folder.file(name, bytes));
    let array = |name: &str, bytes: Vec<u8>| {
        let inputs = [("x".to_string(), folder.file(name, bytes))].into();
        Source::Npy {
            inputs,
            target: folder.file("y.npy", npy("<f4", "(2,)", &floats(&[0.0, 1.0]))),
        }
    };
    let whole = npy("<f4", "(2, 4)", &floats(&[0.0; 8]));
    let golden = [
        (
            images("png", b"\x89PNG....".to_vec()),
            "png: begins with [89, 50, 4e, 47]; an idx file begins with 00 00",
        ),
        (
            images("type", vec![0, 0, 7, 1, 0]),
            "type: unknown idx dtype 0x07; known are 08, 09, 0b, 0c, 0d and 0e",
        ),
        (images("dims", vec![0, 0, 8, 0]), "dims: an idx file of 0 dimensions; expected 1 to 8"),
        (images("head", vec![0, 0, 8, 3, 0]), "head: cut short: it ends within its header"),
        (
            images("short", idx(&[2, 4], &[0; 7])),
            "short: cut short: 2 samples of shape [4] need 20 bytes, there are 19",
        ),
        (
            images("huge", idx(&[u32::MAX; 4], &[0; 7])),
            "huge: a sample of shape [4294967295, 4294967295, 4294967295] is larger than any \
             memory",
        ),
        (images("count", idx(&[3, 4], &[0; 12])), "count: `x` has 3 samples but the target has 2"),
        (
            images("shape", idx(&[2, 5], &[0; 10])),
            "shape: a sample of `x` has the shape [5], but [4] is wanted",
        ),
        (array("x.npy", whole.clone()), "y.npy: `target` is float32, but int64 is wanted"),
        (
            array("text.npy", b"PK\x03\x04....".to_vec()),
            "text.npy: is no .npy array: it does not begin with \\x93NUMPY",
        ),
        (
            array("short.npy", whole[..whole.len() - 1].to_vec()),
            "short.npy: cut short: 2 samples of shape [4] need 102 bytes, there are 101",
        ),
        (
            array("complex.npy", npy("<c8", "(2, 4)", &[])),
            "complex.npy: dtype '<c8' is not supported, in the header {'descr': '<c8', \
             'fortran_order': False, 'shape': (2, 4), }",
        ),
        (file("a.npz", b"PK"), "a.npz: not an .npz file: invalid Zip archive: Could not find EOCD"),
        (
            file("b.npz", &archive(true, &[("X.npy", whole.clone())])),
            "b.npz: no array `target`; it holds X",
        ),
        (
            file("a.safetensors", &[9, 0, 0, 0, 0, 0, 0, 1]),
            "a.safetensors: not a safetensors file, or cut short: its header would have \
             72057594037927945 bytes",
        ),
        (file("b.jsonl", b"{\"x\": [1, 2, 3, 4]}\n"), "b.jsonl: line 1: no key `target`; it has x"),
        (
            file("c.jsonl", b"{\"x\": 1, \"target\": 0.5}\n"),
            "c.jsonl: line 1: `target`: `0.5` is not a whole number",
        ),
        (
            file("c2.jsonl", b"{\"x\": [1, 2, 3, 4], \"target\": 9007199254740993}\n"),
            "c2.jsonl: line 1: `target`: is a whole number of 2^53 or more, which this format \
             cannot carry exactly; use .npy or .safetensors",
        ),
        (
            file("d.jsonl", b"{\"x\": [1], \"target\": 0}\n{\"x\": [1, 2], \"target\": 0}"),
            "d.jsonl: line 2: `x`: a sample of shape [2], but those before have [1]",
        ),
        (
            file("e.jsonl", b"{\"x\": [[1], [1, 2]], \"target\": 0}"),
            "e.jsonl: line 1: `x`: lists of 1 and of 2 beside each other",
        ),
        (
            file("f.jsonl", b"[1"),
            "f.jsonl: line 1: is no JSON object: invalid type: sequence, expected a map at line 1 \
             column 0",
        ),
        (file("g.jsonl", b""), "g.jsonl: it holds no samples"),
        (file("h.csv", b"1,2,3,4,5\n1,2,3,x,0\n"), "h.csv: line 2, column 4: `x` is not a number"),
        (
            file("empty.csv", b"1,2,3,4,5\n1,2,3,,0\n"),
            "empty.csv: line 2, column 4: is empty; write a number, or delete the line",
        ),
        (
            file("name.csv", b"1,2,3,4,cat\n"),
            "name.csv: line 1, column 5: `cat` is not a class: 0, 1, 2 ...; `columns` takes the \
             names of classes",
        ),
        (
            file("semicolons.csv", b"1;2;3;4;5\n6;7;8;9;0\n"),
            "semicolons.csv: line 2 has 1 columns; the model needs 4 for its input and 1 for the \
             target; it is separated by semicolons: use commas",
        ),
        (
            file("i.csv", b"\r\n1,2,3,4,5\r\n\r\n1,2,3,x,0"),
            "i.csv: line 4, column 4: `x` is not a number",
        ),
        (
            file("j.csv", b"\xef\xbb\xbfLabel,p0,p1,p2,p3\n7,1,2,3,4\n"),
            "j.csv: line 1 names the column `Label`, but the target is the last column; move it \
             to the end, or name the columns in `columns`; if it is an input, rename it",
        ),
        (
            file("k.csv", b"0,1,2,3,4\n5,6,7,8,0\n"),
            "k.csv: line 1 counts the columns, as the header of pandas does; delete it; if it is \
             a sample, write 0.0 for its 0",
        ),
        (
            file("i.xlsx", b""),
            "i.xlsx: expected a file ending in .csv, .csv.gz, .jsonl, .jsonl.gz, .npz, .parquet \
             or .safetensors, or a folder of pictures",
        ),
    ];
    let found: Vec<_> = golden
        .iter()
        .map(|(source, _)| folder.error(Dataset::open(source, &model("4"), &CLASSES, None)))
        .collect();
    assert_eq!(found, golden.map(|(_, expected)| expected));
}

/// The checksum of a compressed array is that of all its bytes, and stands after them.
#[test]
fn arrays_that_their_checksum_contradicts_are_damaged() {
    let folder = Folder::new();
    let labels = folder.file("labels", idx(&[2], &[0, 1]));
    let open_idx = |name: &str, bytes: Vec<u8>| {
        let source =
            Source::Idx { images: folder.file(name, gzip(&bytes)), labels: labels.clone() };
        let path = folder.path(name);
        move |edit: fn(&mut Vec<u8>)| {
            let mut bytes = std::fs::read(&path).unwrap();
            edit(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
            Dataset::open(&source, &model("4"), &CLASSES, None).map(|data| data.samples())
        }
    };
    let open = open_idx("a.gz", idx(&[2, 4], &[0; 8]));
    assert_eq!(open(|_| {}).unwrap(), 2);
    let checksum: fn(&mut Vec<u8>) = |gzip| {
        let place = gzip.len() - 8;
        gzip[place] ^= 1;
    };
    let problem = "is damaged (corrupt gzip stream does not have a matching checksum); copy or \
                   make it again";
    assert_eq!(folder.error(open(checksum)), format!("a.gz: {problem}"));
    let open = open_idx("b.gz", idx(&[2, 4], &[0; 8]));
    let error = folder.error(open(|gzip| gzip.truncate(gzip.len() - 1)));
    assert!(error.starts_with("b.gz: is damaged ("), "{error}");
    let open = open_idx("c.gz", idx(&[2, 4], &[0; 9]));
    let error = folder.error(open(|_| {}));
    assert_eq!(error, "c.gz: has more than the 8 bytes of the samples in its header");

    let y = npy("|u1", "(2,)", &[0, 1]);
    for compressed in [true, false] {
        let open = |x: &[u8], edit: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes =
                archive(compressed, &[("x.npy", x.to_vec()), ("target.npy", y.clone())]);
            edit(&mut bytes);
            let source = Source::File(folder.file("a.npz", bytes));
            Dataset::open(&source, &model("4"), &CLASSES, None).map(|data| data.samples())
        };
        let x = npy("<f4", "(2, 4)", &floats(&[0.5; 8]));
        assert_eq!(open(&x, &|_| {}).unwrap(), 2);
        let mut sum = flate2::Crc::new();
        sum.update(&x);
        let sum = sum.sum().to_le_bytes();
        let other = |zip: &mut Vec<u8>| {
            while let Some(place) = zip.windows(4).position(|bytes| bytes == sum) {
                zip[place] ^= 1;
            }
        };
        let error = folder.error(open(&x, &other));
        assert_eq!(error, "a.npz/x.npy: is damaged (Invalid checksum); copy or make it again");
        let long = [&x, &b"more"[..]].concat();
        let error = folder.error(open(&long, &|_| {}));
        assert_eq!(error, "a.npz/x.npy: has more than the 32 bytes of the samples in its header");
        let error = folder.error(open(&x[..x.len() - 1], &|_| {}));
        assert_eq!(error, "a.npz/x.npy: cut short: its samples need 32 bytes, there are 31");
    }
}

#[test]
fn long_values_are_cut_in_errors() {
    let folder = Folder::new();
    let long = "x".repeat(1 << 20);
    let shown = format!("{}…", "x".repeat(60));
    let csv = folder.file("a.csv", format!("1,2,3,{long},0\n"));
    let error = folder.error(Dataset::read(&csv, &model("4"), &CLASSES));
    assert_eq!(error, format!("a.csv: line 1, column 4: `{shown}` is not a number"));
    let lines = folder.file("b.jsonl", format!("{{\"x\": \"{long}\", \"target\": 0}}\n"));
    let error = folder.error(Dataset::read(&lines, &model("4"), &CLASSES));
    let expected = format!("b.jsonl: line 1: `x`: expected numbers, found \"{}…", &shown[..59]);
    assert_eq!(error, expected);
    let text = folder.file("c.jsonl", format!("\"{long}\"\n"));
    let error = folder.error(Dataset::read(&text, &model("4"), &CLASSES));
    assert!(error.starts_with("c.jsonl: line 1: is no JSON object: ") && error.len() < 300);
}

/// Formats that are read from the beginning report it at once. Formats that are read in place
/// report it with the batch.
#[test]
fn what_is_no_finite_number_is_named_with_its_place() {
    let folder = Folder::new();
    let file = |name: &str, bytes: &[u8]| Source::File(folder.file(name, bytes));
    let regression = LossSpec::MSELoss;
    let at_once = [
        (
            file("a.csv", b"1,2,3,4\n5,nan,7,8\n"),
            "a.csv: line 2, column 2: `NaN` is no number to train with",
        ),
        (
            file("b.csv", b"x,y,z,u\n5,6,7,-inf\n"),
            "b.csv: line 2, column 4: `-inf` is no number to train with",
        ),
        (
            file("c.csv", b"1,2,1e39,4\n"),
            "c.csv: line 1, column 3: `1e39` is larger than any float32",
        ),
        (
            file("d.jsonl", b"{\"x\": [1, 1e300], \"target\": [0, 0]}\n"),
            "d.jsonl: line 1: `x`: `1e300` is larger than any float32",
        ),
    ];
    let found = at_once
        .each_ref()
        .map(|(source, _)| folder.error(Dataset::open(source, &model("2"), &regression, None)));
    assert_eq!(found.each_ref().map(String::as_str), at_once.map(|(_, expected)| expected));

    let whole = floats(&[0.0; 6]);
    let with = |place: usize, number: f32| {
        let mut numbers = [0.0; 6];
        numbers[place] = number;
        floats(&numbers)
    };
    let doubles: Vec<u8> = [0.0, 1.0, 2.0, 3.0, -1e39, 5.0f64]
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    let arrays = |x: (&str, &[u8]), y: &[u8]| {
        let inputs = [("x".to_string(), folder.file("x.npy", npy(x.0, "(3, 2)", x.1)))].into();
        Source::Npy { inputs, target: folder.file("y.npy", npy("<f4", "(3, 2)", y)) }
    };
    let hint = "no number to train with; mend it, or leave the sample out";
    let found = |source: &Source, expected: &str| {
        let data = Dataset::open(source, &model("2"), &regression, None).unwrap();
        // Samples 0 and 1 are good.
        data.batch(&[1, 0]).unwrap();
        assert_eq!(folder.error(data.batch(&[0, 2, 1])), format!("{expected}, {hint}"));
    };
    found(
        &arrays(("<f4", &with(5, f32::NAN)), &whole),
        "x.npy: sample 2 of `x`, element [1] (counted from 0) is NaN",
    );
    found(
        &arrays(("<f4", &whole), &with(4, f32::INFINITY)),
        "y.npy: sample 2 of `target`, element [0] (counted from 0) is inf",
    );
    found(
        &arrays(("<f8", &doubles), &whole),
        "x.npy: sample 2 of `x`, element [0] (counted from 0) is -inf",
    );
    let wholes: Vec<u8> =
        [0, 1, 2, 3, 100_000, 5i32].iter().flat_map(|number| number.to_le_bytes()).collect();
    let source = arrays(("<i4", &wholes), &whole);
    let data = Dataset::open(&source, &model_of("float16", "2"), &regression, None).unwrap();
    data.batch(&[1, 0]).unwrap();
    assert_eq!(
        folder.error(data.batch(&[0, 2, 1])),
        format!("x.npy: sample 2 of `x`, element [0] (counted from 0) is inf, {hint}")
    );
    let path = folder.file(
        "e.npz",
        archive(
            true,
            &[
                ("x.npy", npy("<f4", "(3, 2)", &with(4, f32::NAN))),
                ("target.npy", npy("<f4", "(3, 2)", &whole)),
            ],
        ),
    );
    found(&Source::File(path), "e.npz/x.npy: sample 2 of `x`, element [0] (counted from 0) is NaN");
    save(
        &folder.path("f.safetensors"),
        &[
            (
                "x",
                Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0, 0.0, f32::NEG_INFINITY])
                    .reshape([3, 2]),
            ),
            ("target", Tensor::zeros([3, 2], (Kind::Float, tch::Device::Cpu))),
        ],
    );
    found(
        &Source::File(folder.path("f.safetensors")),
        "f.safetensors: sample 2 of `x`, element [1] (counted from 0) is -inf",
    );
}

/// Numbers whose sum overflows their type are still finite numbers.
#[test]
fn large_numbers_are_numbers() {
    let folder = Folder::new();
    let large: Vec<u8> = [1e308f64; 4].iter().flat_map(|number| number.to_le_bytes()).collect();
    let inputs = [("x".to_string(), folder.file("x.npy", npy("<f8", "(2, 2)", &large)))].into();
    let source = Source::Npy { inputs, target: folder.file("y.npy", npy("|u1", "(2,)", &[0, 1])) };
    let model = model_of("float64", "2");
    let batch = Dataset::open(&source, &model, &CLASSES, None).unwrap().batch(&[0, 1]).unwrap();
    assert_eq!(numbers(batch.x()), [1e308; 4]);
}

#[test]
fn files_that_cannot_be_read_are_named_with_what_helps() {
    let folder = Folder::new();
    for name in ["a.csv", "b.jsonl", "c.npz", "d.parquet", "e.safetensors"] {
        std::fs::create_dir(folder.path(name)).unwrap();
        let error = folder.error(Dataset::read(&folder.path(name), &model("2"), &CLASSES));
        assert!(error.starts_with(&format!("{name}: ")) && error.lines().count() == 1, "{error}");
        assert!(error.contains("Is a directory") || error.contains("is not a file"), "{error}");
    }
    folder.file("f", "");
    let error = folder.error(Dataset::read(&folder.path("f/g.csv"), &model("2"), &CLASSES));
    assert!(error.ends_with("a part of this path is a file, not a folder"), "{error}");
}

#[test]
fn an_input_that_the_model_has_not_is_named() {
    let folder = Folder::new();
    let path = folder.file("a.npz", archive(true, &[]));
    let table =
        Table { inputs: [("y".into(), "pixels".into())].into(), ..Table::with_default_names(path) };
    let error = folder.error(Dataset::open(&Source::Npz(table), &model("4"), &CLASSES, None));
    assert_eq!(error, "a.npz: the model has no input `y`; its inputs are x");
}

/// Readers of binary files receive files with a few bytes changed, cut off or inserted.
#[test]
fn no_content_of_a_file_makes_a_panic() {
    let folder = Folder::new();
    let path = folder.path("whole.safetensors");
    save(
        &path,
        &[
            ("x", Tensor::from_slice(&[1u8, 2, 3, 4, 5, 6, 7, 8]).reshape([2, 4])),
            ("target", Tensor::from_slice(&[5i64, 6])),
        ],
    );
    let (x, y) = (npy("<f4", "(2, 4)", &floats(&[0.5; 8])), npy("|u1", "(2,)", &[0, 1]));
    let arrays = [("x.npy", x), ("target.npy", y)];
    let seeds = [
        ("a.npz", archive(true, &arrays)),
        ("b.npz", archive(false, &arrays)),
        ("c.safetensors", std::fs::read(path).unwrap()),
        ("d.jsonl", b"{\"x\": [1, 2, 3, 4], \"target\": 1}\n".repeat(2)),
        ("d.jsonl.gz", gzip(&b"{\"x\": [1, 2, 3, 4], \"target\": 1}\n".repeat(2))),
        ("e.csv.gz", gzip(&b"1,2,3,4,0\n".repeat(2))),
        ("e.parquet", parquet_file()),
        ("f.idx", idx(&[2, 4], &[9; 8])),
        ("g.idx", gzip(&idx(&[2, 4], &[9; 8]))),
    ];
    let labels = folder.file("labels", idx(&[2], &[0, 1]));
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (name, whole) in seeds {
        let path = folder.file(name, &whole);
        let source = match name.ends_with(".idx") {
            true => Source::Idx { images: path.clone(), labels: labels.clone() },
            false if name.ends_with(".parquet") => Source::Parquet(Table {
                inputs: [("x".into(), "pixels".into())].into(),
                target: "label".into(),
                path: path.clone(),
            }),
            false => Source::File(path.clone()),
        };
        let shape = if name == "e.parquet" { "2" } else { "4" };
        let read = || {
            Dataset::open(&source, &model(shape), &CLASSES, None)
                .and_then(|data| data.batch(&[1, 0]))
        };
        assert!(read().is_ok(), "{name}: {:?}", read());
        for _ in 0..400 {
            std::fs::write(&path, mutated(&whole, &mut random)).unwrap();
            drop(read());
        }
    }
}

pub(super) fn mutated(whole: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..bytes.len().max(1));
        match random.random_range(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), random.random()),
            2 => bytes.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xff),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.random()),
        }
    }
    bytes
}

/// Does the same for tables by the names of columns, also while they are learned from.
#[test]
fn no_content_of_a_named_table_makes_a_panic() {
    let folder = Folder::new();
    let csv = b"id,cut,price\n1,Ideal,0.5\n2,Good,1.5\n3,\"a, b\",2\n".to_vec();
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let target = TargetColumn { column: "price".into(), transform: Transform::Log };
    let spec = ColumnsSpec {
        inputs: InputColumns::Only(vec!["cut".into()]),
        target,
        id: Some("id".into()),
        missing: Missing::MostCommon,
        normalize: true,
    };
    for (name, whole, width) in [
        ("a.csv", csv.clone(), "3"),
        ("b.csv.gz", gzip(&csv), "3"),
        ("c.parquet", parquet_of_texts(), "2"),
    ] {
        let path = folder.file(name, &whole);
        let table = ColumnsSource { path: path.clone(), spec: spec.clone(), learned: None };
        let source = Source::Columns(Box::new(table.clone()));
        let read = || {
            drop((table.ids(), table.line_of(1)));
            let loss = pipeline::LossSpec::MSELoss;
            Dataset::open(&source, &one_output(width), &loss, None)
                .and_then(|data| data.batch(&[1, 0]))
        };
        assert!(read().is_ok(), "{name}: {:?}", read());
        for _ in 0..400 {
            std::fs::write(&path, mutated(&whole, &mut random)).unwrap();
            drop(read());
        }
    }
}

fn one_output(features: &str) -> LayerGraph {
    let text = format!(
        "{{inputs: {{x: [batch, {features}]}}, layers: [{{Linear: {{in_features: {features}, \
         out_features: 1}}}}]}}"
    );
    LayerGraph::from_yaml(&text, "model").unwrap()
}

/// Does the same for pictures.
#[test]
fn no_content_of_a_picture_makes_a_panic() {
    let folder = Folder::new();
    let picture =
        image::RgbImage::from_fn(5, 4, |x, y| image::Rgb([x as u8 * 40, y as u8 * 50, 7]));
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for name in ["class/a.png", "class/a.jpg"] {
        let path = folder.file(name, "");
        picture.save(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let read = || {
            Dataset::read(&folder.path(""), &model("3, 4, 5"), &CLASSES)
                .and_then(|data| data.batch(&[0]))
        };
        assert!(read().is_ok(), "{name}: {:?}", read());
        for _ in 0..400 {
            std::fs::write(&path, mutated(&whole, &mut random)).unwrap();
            drop(read());
        }
        std::fs::remove_file(path).unwrap();
    }
}
