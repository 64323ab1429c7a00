//! Receipts of any content: an error or a receipt, never a panic.

use super::Receipt;
use testkit::mutate::fuzz;

const PIECES: [&str; 9] =
    ["0", "-1", "1e400", "null", "[]", "{}", "\"\"", "18446744073709551616", "\"step\": 7,"];

#[test]
fn a_receipt_of_any_content_is_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let receipt = super::example();
    receipt.clone().write(folder.path()).unwrap();
    let read = Receipt::read(folder.path()).unwrap();
    assert_eq!(Receipt { sha256: String::new(), ..read }, receipt);
    let text = std::fs::read(folder.path().join(super::RECEIPT)).unwrap();
    fuzz("receipt", &[text], &PIECES, |bytes| {
        if let Ok(receipt) = Receipt::parse(bytes) {
            assert!(receipt.digests.iter().all(|digest| digest.step <= receipt.steps));
        }
    });
}
