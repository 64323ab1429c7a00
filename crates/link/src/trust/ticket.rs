//! The join ticket. It proves to the boss that a worker may join, and names the right boss to the
//! worker.

use aws_lc_rs::digest::{digest, SHA256};
use aws_lc_rs::hmac;
use data_encoding::{BASE32_NOPAD, HEXLOWER};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The version of tickets. Raise it with every change of their bytes.
const VERSION: u32 = 1;
const PREFIX: &str = "bossman1-";
/// The text before the version.
const NAME: &str = "bossman";
const CHECK_BYTES: usize = 4;

/// A secret and the fingerprint of the boss's public key. Its text can be pasted.
///
/// The secret never travels. A key pair is derived from it (see [`crate::trust::tls`]), and TLS
/// proves that the other end has the same.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) secret: [u8; 32],
    pub(crate) boss: [u8; 32],
}

/// Why a text is not a ticket.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TicketError {
    /// The text does not begin as a ticket does.
    #[error(
        "this is not a join ticket: it must start with `{PREFIX}`; copy the whole MODEL_TICKET \
         that the boss prints"
    )]
    Prefix,
    /// The ticket is of another version.
    #[error(
        "this join ticket is of version {0}, and this program reads version {VERSION}; build the \
         same commit on both machines"
    )]
    Version(u32),
    /// The text is not complete, or a character is wrong.
    #[error("this join ticket is damaged; copy the whole MODEL_TICKET that the boss prints")]
    Damaged,
}

impl Ticket {
    /// A mark of this content that only who has the ticket can make. It does not tell the ticket.
    pub fn mark(&self, content: &[u8]) -> String {
        let mut tag = hmac::Context::with_key(&self.mark_key());
        tag.update(content);
        HEXLOWER.encode(tag.sign().as_ref())
    }

    /// Whether this is the mark of the content.
    pub fn has_marked(&self, content: &[u8], mark: &[u8]) -> bool {
        let mark = HEXLOWER.decode(mark.trim_ascii());
        mark.is_ok_and(|mark| hmac::verify(&self.mark_key(), content, &mark).is_ok())
    }

    /// A key for marks alone.
    fn mark_key(&self) -> hmac::Key {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, b"bossman mark 1").as_ref())
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(64 + CHECK_BYTES);
        bytes.extend(self.secret);
        bytes.extend(self.boss);
        let check = digest(&SHA256, &bytes);
        bytes.extend(&check.as_ref()[..CHECK_BYTES]);
        write!(f, "{PREFIX}{}", BASE32_NOPAD.encode(&bytes).to_lowercase())
    }
}

/// Hides the secret.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim().to_lowercase();
        let body = text.strip_prefix(PREFIX).ok_or_else(|| match other_version(&text) {
            Some(version) => TicketError::Version(version),
            None => TicketError::Prefix,
        })?;
        let bytes = BASE32_NOPAD
            .decode(body.to_uppercase().as_bytes())
            .map_err(|_| TicketError::Damaged)?;
        let (body, check) = bytes.split_at_checked(64).ok_or(TicketError::Damaged)?;
        if check != &digest(&SHA256, body).as_ref()[..CHECK_BYTES] {
            return Err(TicketError::Damaged);
        }
        let mut ticket = Ticket { secret: [0; 32], boss: [0; 32] };
        ticket.secret.copy_from_slice(&body[..32]);
        ticket.boss.copy_from_slice(&body[32..]);
        Ok(ticket)
    }
}

/// The version of a ticket that another program may read.
fn other_version(text: &str) -> Option<u32> {
    let (version, _) = text.strip_prefix(NAME)?.split_once('-')?;
    version.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ticket as a program of version 1 printed it.
    const KEPT: &str = "bossman1-a4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqs\
                        cijbeeqscijbeeqscijbeeqscijbeeqscijbeeqscijbeeqsckjiqh2i";

    /// JOIN-4.
    #[test]
    fn tickets_of_version_1_are_read_and_others_are_refused_by_their_number() {
        let ticket = Ticket { secret: [7; 32], boss: [9; 32] };
        assert_eq!(KEPT.parse::<Ticket>(), Ok(ticket));
        assert_eq!(PREFIX, format!("{NAME}{VERSION}-"));
        for other in [0, 2, 10] {
            let text = KEPT.replacen('1', &other.to_string(), 1);
            assert_eq!(text.parse::<Ticket>(), Err(TicketError::Version(other)));
        }
        let error = TicketError::Version(2).to_string();
        assert!(error.starts_with("this join ticket is of version 2, "), "{error}");
        assert_eq!("bossman-x".parse::<Ticket>(), Err(TicketError::Prefix));
    }

    #[test]
    fn a_mark_is_of_one_ticket_and_one_content() {
        let ticket = Ticket { secret: [7; 32], boss: [0; 32] };
        let mark = ticket.mark(b"run");
        assert!(ticket.has_marked(b"run", mark.as_bytes()));
        assert!(!ticket.has_marked(b"ran", mark.as_bytes()));
        let other = Ticket { secret: [8; 32], boss: [0; 32] };
        assert!(!other.has_marked(b"run", mark.as_bytes()));
        assert!(!ticket.has_marked(b"run", b"") && !ticket.has_marked(b"run", b"zz"));
    }

    /// JOIN-1, JOIN-3.
    #[test]
    fn survives_being_pasted() {
        let ticket = Ticket { secret: [7; 32], boss: [9; 32] };
        let text = ticket.to_string();
        assert_eq!(text.parse::<Ticket>(), Ok(ticket.clone()));
        assert_eq!(format!(" {}\n", text.to_uppercase()).parse::<Ticket>(), Ok(ticket.clone()));
        assert!(!format!("{ticket:?}").contains("07"));
    }

    /// JOIN-3.
    #[test]
    fn a_wrong_character_is_noticed() {
        let text = Ticket { secret: [7; 32], boss: [9; 32] }.to_string();
        for at in PREFIX.len()..text.len() {
            let mut broken = text.clone().into_bytes();
            broken[at] = if broken[at] == b'a' { b'b' } else { b'a' };
            let broken = String::from_utf8(broken).unwrap();
            assert_eq!(broken.parse::<Ticket>(), Err(TicketError::Damaged), "{broken}");
        }
        assert_eq!(text[..text.len() - 3].parse::<Ticket>(), Err(TicketError::Damaged));
        assert_eq!("hello".parse::<Ticket>(), Err(TicketError::Prefix));
        assert_eq!(PREFIX.parse::<Ticket>(), Err(TicketError::Damaged));
    }

    /// JOIN-3.
    #[test]
    fn a_text_of_any_content_is_a_ticket_or_refused() {
        let whole = Ticket { secret: [7; 32], boss: [9; 32] }.to_string();
        let pieces = [PREFIX, "", " ", "\n", "=", "1", "8", "A", "ı", "é", "İ", "\u{0}"];
        let corpus = [whole.clone().into_bytes(), whole.to_uppercase().into_bytes(), Vec::new()];
        testkit::mutate::fuzz("ticket", &corpus, &pieces, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(ticket) = text.parse::<Ticket>() {
                assert!(ticket.to_string() == whole, "{text} is a ticket");
            }
        });
    }
}
