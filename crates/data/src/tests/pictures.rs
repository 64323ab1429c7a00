//! Tests which pictures of a folder are read, and which class each has.

use super::*;

/// Writes pictures of one pixel. JPEG files may have any name.
fn pictures(folder: &Folder, names: &[&str]) {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(1, 1).write_to(&mut bytes, image::ImageFormat::Jpeg).unwrap();
    names.iter().for_each(|name| drop(folder.file(name, bytes.get_ref())));
}

fn of(folder: &Folder, name: &str) -> Source {
    Source::File(folder.path(name))
}

fn labelled(source: &Source) -> Result<Dataset, DataError> {
    Dataset::open(source, &model("3"), &CLASSES, None)
}

fn unlabelled(source: &Source) -> Result<Dataset, DataError> {
    Dataset::open_inputs(source, &model("3"), None)
}

fn labels(source: &Source) -> Vec<f64> {
    let data = labelled(source).unwrap();
    let all: Vec<i64> = (0..data.samples() as i64).collect();
    numbers(data.batch(&all).unwrap().y())
}

/// A class that one part lacks would otherwise shift the numbers of all that follow.
#[test]
fn a_part_without_a_class_has_the_numbers_of_the_data_to_train_on() {
    let folder = Folder::new();
    pictures(&folder, &["t/cat/1.jpg", "t/dog/1.jpg", "t/fox/1.jpg"]);
    pictures(&folder, &["v/dog/1.jpg", "v/dog/2.jpg", "v/fox/1.jpg"]);
    let names = of(&folder, "t").learn_classes().unwrap().unwrap();
    assert_eq!(names, ["cat", "dog", "fox"]);
    let part = of(&folder, "v").with_classes(&names);
    assert_eq!(labels(&part), [1.0, 1.0, 2.0]);
    assert_eq!(part.class_names().unwrap().unwrap(), names);
    // A class without pictures is allowed where the names are known.
    std::fs::create_dir(folder.path("v/cat")).unwrap();
    assert_eq!(labels(&part), [1.0, 1.0, 2.0]);
    let moved = part.with_paths(&|path| Ok(path.to_path_buf())).unwrap();
    assert_eq!(moved, part);
    let error = folder.error(labelled(&of(&folder, "v")));
    assert_eq!(error, "v/cat: holds no .png, .jpg or .jpeg");
    std::fs::create_dir(folder.path("t/gnu")).unwrap();
    let error = folder.error(of(&folder, "t").learn_classes());
    assert_eq!(error, "t/gnu: holds no .png, .jpg or .jpeg");
}

#[test]
fn a_folder_that_is_no_known_class_is_refused() {
    let folder = Folder::new();
    pictures(&folder, &["v/a_dog/1.jpg", "v/fox/1.jpg"]);
    let part = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        of(&folder, "v").with_classes(&names)
    };
    assert_eq!(
        folder.error(labelled(&part(&["cat", "dog", "fox"]))),
        "v/a_dog: `a_dog` is no class of the data to train on, which has cat, dog, fox"
    );
    assert_eq!(
        folder.error(labelled(&part(&["a_dgo", "fox"]))),
        "v/a_dog: `a_dog` is no class of the data to train on, which has a_dgo, fox; did you mean \
         `a_dgo`?"
    );
    // The order is that of the names, and predictions need no classes.
    assert_eq!(labels(&part(&["fox", "a_dog"])), [1.0, 0.0]);
    assert_eq!(unlabelled(&part(&["cat"])).unwrap().samples(), 2);
    // Files of other formats have no such classes.
    let csv = Source::File(folder.file("a.csv", "1,2,3,0\n"));
    assert_eq!(csv.clone().with_classes(&["cat".into()]), csv);
    assert_eq!(csv.learn_classes().unwrap(), None);
}

#[test]
fn known_classes_without_any_picture_are_refused() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("v/cat")).unwrap();
    let part = of(&folder, "v").with_classes(&["cat".into()]);
    assert_eq!(folder.error(labelled(&part)), "v: holds no .png, .jpg or .jpeg");
}

/// Workers open their own files with the classes of the boss.
#[test]
fn workers_know_the_classes() {
    let folder = Folder::new();
    pictures(&folder, &["v/dog/1.jpg"]);
    let part = of(&folder, "v").with_classes(&["cat".into(), "dog".into()]);
    let sent = labelled(&part).unwrap().for_workers(&folder.path("")).unwrap();
    let graph = model("3");
    let spec = sent.spec(&graph).unwrap();
    let found = Dataset::from_description(&spec.description, spec.id, &folder.path("")).unwrap();
    assert_eq!(numbers(found.batch(&[0]).unwrap().y()), [1.0]);
}

#[test]
fn jpeg_files_are_read_by_all_of_their_endings() {
    let folder = Folder::new();
    pictures(&folder, &["t/cat/1.jpg", "t/cat/3.jfif", "t/cat/4.JPE"]);
    assert_eq!(labels(&of(&folder, "t")), [0.0; 3]);
    assert_eq!(unlabelled(&of(&folder, "t/cat/4.JPE")).unwrap().samples(), 1);
}

/// Enough pictures for several threads.
#[test]
fn many_pictures_stay_in_order_and_the_first_broken_one_is_named() {
    let folder = Folder::new();
    for number in 0..100u8 {
        let picture = image::RgbImage::from_pixel(2, 1, image::Rgb([number, 100, 200]));
        picture.save(folder.file(&format!("t/cat/{number:03}.png"), "")).unwrap();
    }
    let data = Dataset::open(&of(&folder, "t"), &model("3, 1, 2"), &CLASSES, None).unwrap();
    let order: Vec<i64> = (0..100).rev().collect();
    let found = numbers(data.batch(&order).unwrap().x());
    for (number, picture) in order.iter().zip(found.chunks(6)) {
        let red = *number as f64;
        assert_eq!(picture, [red, red, 100.0, 100.0, 200.0, 200.0]);
    }
    folder.file("t/cat/030.png", "broken");
    image::RgbImage::new(1, 1).save(folder.path("t/cat/070.png")).unwrap();
    let expected = "t/cat/070.png: is no longer 2 x 1; has the file changed?";
    assert_eq!(folder.error(data.batch(&order)), expected);
    // The sizes are read in the order of the files.
    let error = folder.error(Dataset::open(&of(&folder, "t"), &model("6"), &CLASSES, None));
    assert!(error.starts_with("t/cat/030.png: "), "{error}");
}

#[test]
fn pictures_of_other_formats_are_refused() {
    for ending in ["ppm", "PGM", "pbm", "pnm", "tga", "jp2", "webp"] {
        for place in ["t/cat", "t"] {
            let folder = Folder::new();
            pictures(&folder, &["t/cat/1.jpg"]);
            let name = format!("{place}/2.{ending}");
            folder.file(&name, "");
            let expected = format!("{name}: is no PNG or JPEG; convert it, or move it away");
            assert_eq!(folder.error(labelled(&of(&folder, "t"))), expected);
            assert_eq!(folder.error(unlabelled(&of(&folder, "t"))), expected);
        }
    }
}

#[test]
fn a_picture_beside_the_classes_is_refused() {
    let folder = Folder::new();
    pictures(&folder, &["t/cat/1.jpg", "t/loose.png"]);
    folder.file("t/notes.txt", "no picture");
    assert_eq!(
        folder.error(labelled(&of(&folder, "t"))),
        "t/loose.png: lies beside the folders of classes; move it into one of them, or away"
    );
    assert_eq!(
        folder.error(unlabelled(&of(&folder, "t"))),
        "t/loose.png: lies beside folders with pictures, as t/cat/1.jpg; put all pictures into \
         folders, or none"
    );
    // A folder without pictures hides none.
    std::fs::remove_file(folder.path("t/cat/1.jpg")).unwrap();
    folder.file("t/cat/notes.txt", "no picture");
    assert_eq!(unlabelled(&of(&folder, "t")).unwrap().samples(), 1);
}

#[test]
fn a_folder_of_pictures_in_a_class_is_refused() {
    for name in ["t/cat/more/0.png", "t/cat/more/deep/0.png", "t/cat/more/0.tif"] {
        let folder = Folder::new();
        pictures(&folder, &["t/cat/1.jpg", name]);
        let expected = "t/cat: holds a folder with pictures, `more`, which are not read; move \
                        them up if they are of this class, or else away";
        assert_eq!(folder.error(labelled(&of(&folder, "t"))), expected);
        assert_eq!(folder.error(unlabelled(&of(&folder, "t"))), expected);
    }
    let folder = Folder::new();
    pictures(&folder, &["t/cat/1.jpg", "t/cat/.hidden/0.png", "t/cat/@eaDir/0.png"]);
    folder.file("t/cat/more/notes.txt", "no picture");
    assert_eq!(labels(&of(&folder, "t")), [0.0]);
}

#[test]
#[cfg(unix)]
fn a_link_that_leads_back_up_ends_the_search() {
    let folder = Folder::new();
    pictures(&folder, &["t/cat/1.jpg"]);
    folder.file("t/cat/more/notes.txt", "no picture");
    std::os::unix::fs::symlink(folder.path("t"), folder.path("t/cat/more/up")).unwrap();
    assert_eq!(labels(&of(&folder, "t")), [0.0]);
}
