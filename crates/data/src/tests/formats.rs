//! Tests that each format returns the samples that were written.

use super::*;

#[test]
fn idx_files_plain_and_gzipped_give_the_same_floats() {
    let folder = Folder::new();
    let images = idx(&[3, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255]);
    let labels = idx(&[3], &[7, 0, 9]);
    let plain = Source::Idx {
        images: folder.file("images", &images),
        labels: folder.file("labels", &labels),
    };
    let zipped = Source::Idx {
        images: folder.file("i.gz", gzip(&images)),
        labels: folder.file("l.gz", gzip(&labels)),
    };
    for source in [plain, zipped] {
        let data = Dataset::open(&source, &model("1, 2, 2"), &CLASSES, None).unwrap();
        let batch = data.batch(&[2, 0]).unwrap();
        assert_eq!(
            (data.samples(), batch.x().size(), batch.x().kind()),
            (3, vec![2, 1, 2, 2], Kind::Float)
        );
        assert_eq!(numbers(batch.x()), [9.0, 10.0, 11.0, 255.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!((numbers(batch.y()), batch.y().kind()), (vec![9.0, 7.0], Kind::Int64));
    }
}

#[test]
fn inputs_are_normalised_by_channel() {
    let folder = Folder::new();
    let images = folder.file("images", idx(&[1, 2, 2], &[0, 255, 51, 102]));
    let source = Source::Idx { images, labels: folder.file("labels", idx(&[1], &[0])) };
    let normalize =
        Normalize { input: None, divide: 255.0, mean: vec![0.0, 0.2], std: vec![1.0, 0.5] };
    let data = Dataset::open(&source, &model("2, 2"), &CLASSES, Some(&normalize)).unwrap();
    let found = numbers(data.batch(&[0]).unwrap().x());
    let off = found
        .iter()
        .zip([0.0, 1.0, 0.0, 0.4])
        .map(|(found, expected): (&f64, f64)| (found - expected).abs());
    assert!(off.fold(0.0, f64::max) < 1e-6, "{found:?}");
    let wrong = Normalize { mean: vec![0.0; 3], ..normalize };
    let error = folder.error(Dataset::open(&source, &model("2, 2"), &CLASSES, Some(&wrong)));
    assert_eq!(
        error,
        "images: `normalize` has 3 numbers as `mean`, but a sample has the shape [2, 2]"
    );
}

#[test]
fn numbers_are_normalised_before_they_are_rounded() {
    let folder = Folder::new();
    let y = folder.file("y.npy", npy("|u1", "(2,)", &[0, 1]));
    let normalised = |descr: &str, bytes: &[u8], dtype: &str, normalize: [f64; 3]| {
        let inputs = [("x".to_string(), folder.file("x.npy", npy(descr, "(2, 1)", bytes)))].into();
        let [divide, mean, std] = normalize;
        let normalize = Normalize { input: None, divide, mean: vec![mean], std: vec![std] };
        let source = Source::Npy { inputs, target: y.clone() };
        let data = Dataset::open(&source, &model_of(dtype, "1"), &CLASSES, Some(&normalize));
        let batch = data.unwrap().batch(&[0, 1]).unwrap();
        assert_ne!(batch.x().kind(), Kind::Double);
        numbers(batch.x())
    };
    let seconds = [1.7e9 + 10.0, 1.7e9 - 50.0f64];
    let doubles: Vec<u8> = seconds.iter().flat_map(|number| number.to_le_bytes()).collect();
    let wholes: Vec<u8> =
        seconds.iter().flat_map(|number| (*number as i32).to_le_bytes()).collect();
    for (descr, bytes) in [("<f8", doubles), ("<i4", wholes)] {
        let found = normalised(descr, &bytes, "float32", [1.0, 1.7e9, 50.0]);
        assert_eq!(found, [f64::from(0.2f32), -1.0], "{descr}");
    }
    let shorts = [0xff, 0xff, 0, 0];
    assert_eq!(normalised("<u2", &shorts, "float16", [65535.0, 0.0, 1.0]), [1.0, 0.0]);
    // What float32 holds is computed in float32.
    let bytes = normalised("|u1", &[7, 200], "float32", [255.0, 0.1307, 0.3081]);
    let expected = [7f32, 200.0].map(|x| f64::from((x / 255.0 - 0.1307f32) / 0.3081f32));
    assert_eq!(bytes, expected);
}

#[test]
fn a_model_of_int32_takes_whole_numbers_that_fit() {
    let folder = Folder::new();
    let whole = |numbers: [i64; 2]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    let y = folder.file("y.npy", npy("|u1", "(2,)", &[0, 1]));
    let array = |name: &str, numbers| {
        let x = folder.file(name, npy("<i8", "(2, 1)", &whole(numbers)));
        Source::Npy { inputs: [("x".to_string(), x)].into(), target: y.clone() }
    };
    let file = |name: &str, text: &str| Source::File(folder.file(name, text));
    let lines = "{\"x\": [7], \"target\": 0}\n{\"x\": [-2147483648], \"target\": 1}\n";
    let open = |source| Dataset::open(&source, &model_of("int32", "1"), &CLASSES, None);
    for source in [
        array("x.npy", [7, i64::from(i32::MIN)]),
        file("a.csv", "7,0\n-2147483648,1\n"),
        file("a.jsonl", lines),
    ] {
        let batch = open(source).unwrap().batch(&[0, 1]).unwrap();
        assert_eq!((batch.x().kind(), numbers(batch.x())), (Kind::Int, vec![7.0, -2147483648.0]));
    }
    let pairs = super::text::pairs(folder.file("a.tsv", "\u{feff}a\tb\n"));
    let inputs =
        "source: {shape: [batch, s], dtype: int32}, given: {shape: [batch, t], dtype: int32}";
    let graph = format!(
        "{{inputs: {{{inputs}}}, layers: [Embedding: {{num_embeddings: 300, \
                         embedding_dim: 4}}]}}"
    );
    let graph = LayerGraph::from_yaml(&graph, "model").unwrap();
    let data = Dataset::open(&Source::Pairs(pairs), &graph, &CLASSES, None).unwrap();
    assert_eq!(numbers(data.batch(&[0]).unwrap().x()), [97.0, 257.0]);

    let data = open(array("z.npy", [7, 1 << 32])).unwrap();
    assert_eq!(
        folder.error(data.batch(&[0, 1])),
        "z.npy: sample 1 of `x`, element [0] (counted from 0) is 4294967296, which the model's \
         int32 cannot hold; mend it, or declare the input as int64"
    );
    assert_eq!(
        folder.error(open(file("b.csv", "7,0\n2147483648,1\n"))),
        "b.csv: line 2, column 1: `2147483648` is not a whole number from -2147483648 to 2147483647"
    );
}

#[test]
fn npy_and_npz_give_what_numpy_wrote() {
    let folder = Folder::new();
    let x = npy("<f4", "(2, 3)", &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let y = npy(">i2", "(2,)", &[0, 1, 1, 0]);
    let inputs = [("x".to_string(), folder.file("x.npy", &x))].into();
    let mut sources = vec![Source::Npy { inputs, target: folder.file("y.npy", &y) }];
    for compressed in [false, true] {
        let files = [("x.npy", x.clone()), ("y.npy", y.clone())];
        let path = folder.file(&format!("{compressed}.npz"), archive(compressed, &files));
        sources.push(Source::Npz(Table { target: "y".into(), ..Table::with_default_names(path) }));
    }
    for source in sources {
        let batch =
            Dataset::open(&source, &model("3"), &CLASSES, None).unwrap().batch(&[1, 0]).unwrap();
        assert_eq!(numbers(batch.x()), [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
        assert_eq!(numbers(batch.y()), [256.0, 1.0]);
    }
}

#[test]
fn safetensors_are_read_where_they_lie_and_under_other_names() {
    let folder = Folder::new();
    let path = folder.path("data.safetensors");
    save(
        &path,
        &[
            ("pixels", Tensor::from_slice(&[1u8, 2, 3, 4]).reshape([2, 2])),
            ("target", Tensor::from_slice(&[5i64, 6])),
        ],
    );
    let table =
        Table { inputs: [("x".into(), "pixels".into())].into(), ..Table::with_default_names(path) };
    let batch = Dataset::open(&Source::Safetensors(table), &model("2"), &CLASSES, None)
        .unwrap()
        .batch(&[1])
        .unwrap();
    assert_eq!((numbers(batch.x()), numbers(batch.y())), (vec![3.0, 4.0], vec![6.0]));
}

#[test]
fn json_lines_give_nested_lists_as_tensors() {
    let folder = Folder::new();
    let text = "\u{feff}{\"x\": [[1, 2], [3, 4.5]], \"target\": 1}\n\n{\"target\": 0, \"x\": [[5, \
                6], [7, 8]], \"more\": null}\n";
    for (name, bytes) in
        [("a.jsonl", text.as_bytes().to_vec()), ("a.jsonl.gz", gzip(text.as_bytes()))]
    {
        let data = Dataset::read(&folder.file(name, bytes), &model("2, 2"), &CLASSES).unwrap();
        let batch = data.batch(&[0, 1]).unwrap();
        assert_eq!(numbers(batch.x()), [1.0, 2.0, 3.0, 4.5, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!((numbers(batch.y()), batch.x().size()), (vec![1.0, 0.0], vec![2, 2, 2]));
    }
}

#[test]
fn a_csv_to_predict_from_has_targets_or_has_none() {
    let folder = Folder::new();
    let open = |text: &str| {
        let source = Source::File(folder.file("a.csv", text));
        let data = Dataset::open_with_or_without_targets(&source, &model("2"), &CLASSES, None);
        let data = data.map_err(|e| e.to_string())?;
        Ok::<_, String>(numbers(&data.inputs(&[0, 1]).unwrap().0))
    };
    assert_eq!(open("1,2\n3,4\n").unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(open("a,b,class\n1,2,0\n3,4,1\n").unwrap(), [1.0, 2.0, 3.0, 4.0]);
    let refused = open("1,2,0,0\n3,4,0,1\n").unwrap_err();
    assert!(refused.contains("line 1 has 4 columns; the model needs 2 for its input"), "{refused}");
}

#[test]
fn csv_gives_targets_of_the_loss() {
    let folder = Folder::new();
    let path = folder.file("a.csv", "a,b,c\n1,2,0.5\n3,4,1.5\n");
    let graph = LayerGraph::from_yaml(
        "{model: m, inputs: {x: [batch, 2]}, layers: [Linear: {in_features: 2, out_features: 1}]}",
        "model",
    );
    let batch =
        Dataset::read(&path, &graph.unwrap(), &LossSpec::MSELoss).unwrap().batch(&[1]).unwrap();
    assert_eq!((numbers(batch.x()), numbers(batch.y())), (vec![3.0, 4.0], vec![1.5]));
    assert_eq!((batch.y().size(), batch.y().kind()), (vec![1, 1], Kind::Float));
}

#[test]
fn pictures_are_classed_by_their_folders() {
    let folder = Folder::new();
    let dot = |rgb: [u8; 3]| {
        let mut picture = image::RgbImage::new(3, 2);
        picture.put_pixel(1, 0, image::Rgb(rgb));
        picture
    };
    for (name, rgb) in
        [("cat/b.png", [1, 2, 3]), ("ant/z.png", [4, 5, 6]), ("cat/a.PNG", [7, 8, 9])]
    {
        dot(rgb).save(folder.file(name, "")).unwrap();
    }
    folder.file("cat/notes.txt", "no picture");
    let data = Dataset::read(&folder.path(""), &model("3, 2, 3"), &CLASSES).unwrap();
    let batch = data.batch(&[0, 1, 2]).unwrap();
    assert_eq!((batch.x().size(), numbers(batch.y())), (vec![3, 3, 2, 3], vec![0.0, 1.0, 1.0]));
    let red = [0.0, 4.0, 0.0, 0.0, 0.0, 0.0];
    let found = numbers(batch.x());
    assert_eq!((&found[..6], found[7], found[13], found[19]), (&red[..], 5.0, 6.0, 7.0));
    // A model that takes one channel gets it, also as a flat input.
    assert_eq!(
        Dataset::read(&folder.path(""), &model("6"), &CLASSES)
            .unwrap()
            .batch(&[0])
            .unwrap()
            .x()
            .size(),
        [1, 6]
    );

    // Without their labels, pictures may lie anywhere.
    dot([1, 1, 1]).save(folder.file("loose/b.png", "")).unwrap();
    dot([2, 2, 2]).save(folder.file("loose/a.png", "")).unwrap();
    for (path, count, first) in [("", 5, "ant/z.png"), ("loose", 2, "a.png"), ("cat/b.png", 1, "")]
    {
        let source = Source::File(folder.path(path));
        let data = Dataset::open_inputs(&source, &model("3, 2, 3"), None).unwrap();
        assert_eq!(data.samples(), count);
        assert!(data.file_of(0).unwrap().ends_with(folder.path(path).join(first)), "{data:?}");
        assert_eq!(data.inputs(&[0]).unwrap().0.size(), [1, 3, 2, 3]);
    }
    let names = Source::File(folder.path("")).class_names().unwrap().unwrap();
    assert_eq!(names, ["ant", "cat", "loose"]);
    std::fs::remove_dir_all(folder.path("loose")).unwrap();

    image::RgbImage::new(2, 2).save(folder.file("cat/c.jpg", "")).unwrap();
    let error = folder.error(Dataset::read(&folder.path(""), &model("3, 2, 3"), &CLASSES));
    assert_eq!(
        error,
        "cat/c.jpg: is 2 x 2, but ant/z.png is 3 x 2; bring all pictures to one size"
    );
}

#[test]
fn parquet_gives_columns_of_numbers_and_of_lists() {
    let folder = Folder::new();
    let path = folder.file("a.parquet", parquet_file());
    let table = Table {
        inputs: [("x".into(), "pixels".into())].into(),
        target: "label".into(),
        path: path.clone(),
    };
    let source = Source::Parquet(table.clone());
    let batch =
        Dataset::open(&source, &model("2"), &CLASSES, None).unwrap().batch(&[2, 0]).unwrap();
    assert_eq!(
        (numbers(batch.x()), numbers(batch.y())),
        (vec![5.0, 6.0, 1.0, 2.0], vec![9.0, 7.0])
    );
    let missing = Source::Parquet(Table { target: "lable".into(), ..table });
    let error = folder.error(Dataset::open(&missing, &model("2"), &CLASSES, None));
    assert_eq!(
        error,
        "a.parquet: no column `lable`; it holds label, pixels; did you mean `label`?"
    );
    let texts = Table {
        inputs: [("x".into(), "cut".into())].into(),
        target: "price".into(),
        path: folder.file("b.parquet", parquet_of_texts()),
    };
    let error = folder.error(Dataset::open(&Source::Parquet(texts), &model("1"), &CLASSES, None));
    assert_eq!(
        error,
        "b.parquet: row 1, column `cut`: expected numbers, found \"Ideal\"; name the columns in \
         `columns`"
    );
}

#[test]
fn parquet_gives_decimals_and_names_the_kind_of_other_columns() {
    let folder = Folder::new();
    let path = folder.file("a.parquet", super::parquet_of_kinds());
    let open = |column: &str| {
        let inputs = [("x".to_string(), column.to_string())].into();
        let table = Table { inputs, target: "label".into(), path: path.clone() };
        Dataset::open(&Source::Parquet(table), &model("1"), &CLASSES, None)
    };
    assert_eq!(numbers(open("price").unwrap().batch(&[0]).unwrap().x()), [1.5]);
    let hint = "(pictures of Hugging Face's datasets? save them as files in a folder for each \
                class)";
    for (column, found) in [("image", "a struct of bytes, path"), ("raw", "bytes")] {
        assert_eq!(
            folder.error(open(column)),
            format!("a.parquet: row 1, column `{column}`: expected numbers, found {found} {hint}")
        );
    }
    let error = folder.error(open("text"));
    assert!(error.ends_with("x…; name the columns in `columns`") && error.len() < 200, "{error}");
}

#[test]
fn a_file_without_targets_is_read_as_the_one_to_train_on() {
    let folder = Folder::new();
    let bytes = idx(&[3, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255]);
    let (images, labels) =
        (folder.file("images", &bytes), folder.file("labels", idx(&[3], &[0; 3])));
    let train = Source::Idx { images, labels };
    let other = train.of_file(&folder.file("others", bytes)).unwrap();
    let open = |source: &Source, sizes| {
        Dataset::open_with_or_without_targets(source, &model(sizes), &CLASSES, None).unwrap()
    };
    assert_eq!(open(&other, "2, 2").samples(), 3);
    let table = |path: PathBuf| {
        let inputs = [("x".to_string(), "pixels".to_string())].into();
        Source::Jsonl(Table { inputs, ..Table::with_default_names(path) })
    };
    let train = table(folder.file("t.jsonl", "{\"pixels\": [1, 2], \"target\": 0}\n"));
    let other = folder.file("o.JSONL", "{\"pixels\": [3, 4]}\n{\"pixels\": [5, 6]}\n");
    let data = open(&train.of_file(&other).unwrap(), "2");
    assert_eq!(numbers(&data.inputs(&[1]).unwrap().0), [5.0, 6.0]);
    assert!(train.of_file(Path::new("o.csv")).is_none());
    assert!(Source::File(other.clone()).of_file(&other).is_none());
}

#[test]
fn a_text_is_read_as_the_one_to_train_on() {
    let text = Text {
        paths: vec!["train.txt".into()],
        tokenizer: Tokenizer::Bytes,
        sequence_length: 7,
        eos: Vec::new(),
    };
    let other = Source::Text(text.clone()).of_file(Path::new("other.txt")).unwrap();
    assert_eq!(other, Source::Text(Text { paths: vec!["other.txt".into()], ..text.clone() }));
    assert!(Source::Text(text).of_file(Path::new("other.csv")).is_none());
}
