//! Tests batches in order, resumed, split and prepared ahead.

use super::*;

/// Makes a source of `samples` samples. The value of each is its number.
fn counted(folder: &Folder, samples: u32) -> Source {
    let bytes: Vec<u8> = (0..samples).map(|n| n as u8).collect();
    let images = folder.file("images", idx(&[samples, 1], &bytes));
    Source::Idx { images, labels: folder.file("labels", idx(&[samples], &bytes)) }
}

fn opened(folder: &Folder, samples: u32) -> Dataset {
    Dataset::open(&counted(folder, samples), &model("1"), &CLASSES, None).unwrap()
}

#[test]
fn batches_resume_at_any_step() {
    let folder = Folder::new();
    let data = opened(&folder, 10);
    let take = |steps| {
        let mut batches = Batches::after(data.clone(), 4, Some(3), steps);
        (0..9).map(|_| numbers(batches.next_batch().unwrap().x())).collect::<Vec<_>>()
    };
    let all = take(0);
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 4, 4, 2, 4, 4, 2]);
    for steps in 1..6 {
        assert_eq!(take(steps)[..9 - steps as usize], all[steps as usize..]);
    }
    let mut epoch = all[..3].concat();
    epoch.sort_by(f64::total_cmp);
    assert!(epoch.iter().copied().eq((0..10).map(f64::from)));
}

#[test]
fn a_split_trains_on_what_is_not_validated() {
    let folder = Folder::new();
    let (train, validation) = opened(&folder, 200).split(0.25, 9).unwrap();
    let all = |data: &Dataset| {
        numbers(data.batch(&Order::new(data.samples(), None, 0).at(0..1000)).unwrap().x())
    };
    assert!((30..70).contains(&validation.samples()), "{}", validation.samples());
    let mut both = [all(&train), all(&validation)].concat();
    both.sort_by(f64::total_cmp);
    assert!(both.into_iter().eq((0..200).map(f64::from)));
    assert_eq!(
        opened(&folder, 1).split(0.5, 1).unwrap_err().to_string(),
        "a split needs two samples or more, not 1; add some (a shorter `sequence_length` makes \
         more of a text)"
    );
    let again = train.split(0.5, 1).unwrap_err();
    assert_eq!(again.to_string(), "the data is split already");
}

#[test]
fn batches_come_ahead_and_errors_at_the_batch_they_belong_to() {
    let folder = Folder::new();
    let data = opened(&folder, 8);
    // Cut the file, so that batches 0 and 1 can be read and batch 2 cannot.
    std::fs::OpenOptions::new()
        .write(true)
        .open(folder.path("images"))
        .unwrap()
        .set_len(12 + 4)
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut ahead = Batches::new(data, 2, None).prefetch().unwrap();
        assert_eq!(numbers(ahead.next_batch().await.unwrap().x()), [0.0, 1.0]);
        assert_eq!(numbers(ahead.next_batch().await.unwrap().x()), [2.0, 3.0]);
        let error = folder.error(ahead.next_batch().await);
        assert_eq!(error, "images: sample 4: failed to fill whole buffer; has the file changed?");
        assert!(ahead.next_batch().await.is_err());
    });
}
