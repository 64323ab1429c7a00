//! The boss's key and ticket, made once and kept in the user's config folder.

use crate::error::LinkError;
use crate::trust::ticket::Ticket;
use aws_lc_rs::digest::{digest, SHA256};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use etcetera::{choose_base_strategy, BaseStrategy};
use rcgen::{KeyPair, PublicKeyData, PKCS_ED25519};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Set to keep keys and tickets elsewhere than in the user's config folder.
pub const CONFIG_DIR: &str = "BOSSMAN_CONFIG_DIR";

const KEY_FILE: &str = "boss.key";
const TICKET_FILE: &str = "ticket";

/// The boss's identity: its private key, and the ticket that lets workers in.
pub struct Identity {
    pub(crate) key: KeyPair,
    ticket: Ticket,
}

impl Identity {
    /// The one in the user's config folder, made at the first call.
    pub fn load_or_create() -> Result<Self, LinkError> {
        Self::load_or_create_in(&config_dir()?)
    }

    /// The one in `folder`, made at the first call; files are readable by their owner alone.
    pub fn load_or_create_in(folder: &Path) -> Result<Self, LinkError> {
        make_private_folder(folder).map_err(|e| LinkError::file(folder, &e))?;
        let key_path = folder.join(KEY_FILE);
        let fresh = KeyPair::generate_for(&PKCS_ED25519).map_err(LinkError::tls)?;
        let der = create_or_read(&key_path, fresh.serialized_der())?;
        let key = KeyPair::try_from(der.as_slice()).map_err(|e| LinkError::Damaged {
            path: key_path.clone(),
            reason: format!("it is not a private key ({e})"),
        })?;
        let boss = fingerprint(&key.subject_public_key_info());
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| LinkError::tls("no randomness from the system"))?;
        let ticket_path = folder.join(TICKET_FILE);
        let text = create_or_read(&ticket_path, Ticket { secret, boss }.to_string().as_bytes())?;
        let ticket = parse_ticket(&ticket_path, &text)?;
        if ticket.boss != boss {
            let reason = format!("it was made for another key than {KEY_FILE}");
            return Err(LinkError::Damaged { path: ticket_path, reason });
        }
        Ok(Identity { key, ticket })
    }

    /// The ticket that lets workers in.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }
}

/// The ticket that a boss of the same user left on this machine, if one did.
pub fn local_ticket() -> Result<Option<Ticket>, LinkError> {
    let path = config_dir()?.join(TICKET_FILE);
    match std::fs::read(&path) {
        Ok(text) => parse_ticket(&path, &text).map(Some),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(LinkError::file(&path, &e)),
    }
}

/// SHA-256 of a public key as it stands in certificates.
pub(crate) fn fingerprint(public_key: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, public_key).as_ref());
    out
}

fn parse_ticket(path: &Path, text: &[u8]) -> Result<Ticket, LinkError> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|e: crate::trust::ticket::TicketError| LinkError::Damaged {
        path: path.to_path_buf(),
        reason: e.to_string(),
    })
}

fn config_dir() -> Result<PathBuf, LinkError> {
    if let Some(dir) = std::env::var_os(CONFIG_DIR) {
        return Ok(PathBuf::from(dir));
    }
    let base = choose_base_strategy().map_err(|_| LinkError::NoHome)?;
    Ok(base.config_dir().join("bossman"))
}

fn make_private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Creates the file if it does not exist, and returns its content. Two processes that start at once
/// end with the same content: the file appears whole under its name, once.
fn create_or_read(path: &Path, fresh: &[u8]) -> Result<Vec<u8>, LinkError> {
    let error = |e: &std::io::Error| LinkError::file(path, e);
    if !path.exists() {
        let mut random = [0; 8];
        SystemRandom::new().fill(&mut random).map_err(|_| LinkError::tls("no randomness from the system"))?;
        let draft = path.with_extension(format!("{:x}.tmp", u64::from_le_bytes(random)));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(&draft).and_then(|mut file| {
            file.write_all(fresh)?;
            file.sync_all()
        });
        let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
        std::fs::remove_file(&draft).ok();
        match linked {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(error(&e)),
        }
    }
    restrict_permissions(path).map_err(|e| error(&e))?;
    std::fs::read(path).map_err(|e| error(&e))
}

/// Takes from others what a copy, a backup or a umask may have given them.
fn restrict_permissions(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path)?.permissions().mode();
        if mode & 0o077 != 0 {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}
