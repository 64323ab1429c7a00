//! The boss's key and ticket. They are made once and stored in the user's config folder.

use crate::error::{IdentityError, LinkError};
use crate::trust::ticket::Ticket;
use aws_lc_rs::digest::{digest, SHA256};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use etcetera::{choose_base_strategy, BaseStrategy};
use rcgen::{KeyPair, PublicKeyData, PKCS_ED25519};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The environment variable that names another folder for the key and the ticket.
pub const CONFIG_DIR: &str = "BOSSMAN_CONFIG_DIR";

const KEY_FILE: &str = "boss.key";
const TICKET_FILE: &str = "ticket";

/// The boss's identity: its private key, and the ticket that admits workers.
pub struct Identity {
    pub(crate) key: KeyPair,
    ticket: Ticket,
    warnings: Vec<String>,
}

impl Identity {
    /// Loads the identity from the user's config folder. The first call creates it.
    ///
    /// # Errors
    /// A file cannot be read, written or used.
    pub fn load_or_create() -> Result<Self, LinkError> {
        Self::load_or_create_in(&config_dir()?)
    }

    /// Loads the identity from `folder`. The first call creates it, with files that only their
    /// owner can read. The files may also be on a mount for reading, as a secret of Kubernetes.
    ///
    /// # Errors
    /// A file cannot be read, written or used.
    pub fn load_or_create_in(folder: &Path) -> Result<Self, LinkError> {
        make_private_folder(folder).map_err(|e| IdentityError::file(folder, &e))?;
        let key_path = folder.join(KEY_FILE);
        let fresh = KeyPair::generate_for(&PKCS_ED25519).map_err(LinkError::tls)?;
        let mut warnings = Vec::new();
        let der = create_or_read(&key_path, fresh.serialized_der(), &mut warnings)?;
        let key = KeyPair::try_from(der.as_slice()).map_err(|e| IdentityError::Damaged {
            path: key_path.clone(),
            reason: format!("it is not a private key ({e})"),
        })?;
        let boss = fingerprint(&key.subject_public_key_info());
        let mut secret = [0; 32];
        SystemRandom::new()
            .fill(&mut secret)
            .map_err(|_| LinkError::tls("no randomness from the system"))?;
        let ticket_path = folder.join(TICKET_FILE);
        let fresh = Ticket { secret, boss }.to_string();
        let text = create_or_read(&ticket_path, fresh.as_bytes(), &mut warnings)?;
        let ticket = parse_ticket(&ticket_path, &text)?;
        if ticket.boss != boss {
            let reason = format!("it was made for another key than {KEY_FILE}");
            return Err(IdentityError::Damaged { path: ticket_path, reason }.into());
        }
        Ok(Identity { key, ticket, warnings })
    }

    /// The ticket that admits workers.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// What the user should know of the files: who else may read them.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Reads the ticket that a boss of the same user stored on this machine. Returns `None` if there is
/// no ticket.
///
/// # Errors
/// The ticket cannot be read or used.
pub fn local_ticket() -> Result<Option<Ticket>, IdentityError> {
    let path = config_dir()?.join(TICKET_FILE);
    match std::fs::read(&path) {
        Ok(text) => parse_ticket(&path, &text).map(Some),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(IdentityError::file(&path, &e)),
    }
}

/// The SHA-256 of a public key in the form that certificates have.
pub(crate) fn fingerprint(public_key: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, public_key).as_ref());
    out
}

fn parse_ticket(path: &Path, text: &[u8]) -> Result<Ticket, IdentityError> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|e: crate::trust::ticket::TicketError| IdentityError::Damaged {
        path: path.to_path_buf(),
        reason: e.to_string(),
    })
}

fn config_dir() -> Result<PathBuf, IdentityError> {
    if let Some(dir) = std::env::var_os(CONFIG_DIR).filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    let base = choose_base_strategy().map_err(|_| IdentityError::NoHome)?;
    Ok(base.config_dir().join("bossman"))
}

fn make_private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Creates the file if it does not exist, and returns its content. If two processes start at once,
/// both get the same content, because a complete file takes the name once.
fn create_or_read(
    path: &Path,
    fresh: &[u8],
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, LinkError> {
    let error = |e: &std::io::Error| IdentityError::file(path, e);
    if !path.exists() {
        let mut random = [0; 8];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| LinkError::tls("no randomness from the system"))?;
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
            Ok(()) => flush_folder_of(path).map_err(|e| error(&e))?,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(error(&e).into()),
        }
    }
    warnings.extend(restrict_permissions(path).map_err(|e| error(&e))?);
    Ok(std::fs::read(path).map_err(|e| error(&e))?)
}

/// Flushes the names in the folder of a file, so that workers' tickets stay valid after a loss of
/// power. Some systems and network mounts cannot do that.
fn flush_folder_of(path: &Path) -> std::io::Result<()> {
    let Some(folder) = path.parent().filter(|_| cfg!(unix)) else { return Ok(()) };
    match std::fs::File::open(folder)?.sync_all() {
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        flushed => flushed,
    }
}

/// Lets only the owner read the file. A copy, a backup or a umask may have allowed more. Returns a
/// warning if that cannot be changed.
fn restrict_permissions(path: &Path) -> std::io::Result<Option<String>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let owner_alone = std::fs::Permissions::from_mode(0o600);
            return unless_fixed(path, mode, std::fs::set_permissions(path, owner_alone));
        }
    }
    Ok(None)
}

/// Permissions may not be this program's to change: a mount for reading, or the file of another
/// user, as in a container. The file can be used nevertheless.
#[cfg(unix)]
fn unless_fixed(
    path: &Path,
    mode: u32,
    restricted: std::io::Result<()>,
) -> std::io::Result<Option<String>> {
    match restricted {
        Err(e)
            if matches!(e.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) =>
        {
            let warning = format!(
                "{}: others than its owner may read this secret (mode {mode:04o}), and that cannot \
                 be changed: {e}",
                path.display()
            );
            Ok((mode & 0o044 != 0).then_some(warning))
        }
        restricted => restricted.map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-8.
    #[test]
    fn processes_that_start_at_once_have_one_identity() {
        for _ in 0..20 {
            let home = tempfile::tempdir().unwrap();
            let folder = home.path().join("bossman");
            let start = || Identity::load_or_create_in(&folder).unwrap().ticket().to_string();
            let tickets: Vec<String> = std::thread::scope(|scope| {
                let starts: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                starts.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(tickets.iter().all(|ticket| *ticket == tickets[0]));
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "a draft is left");
        }
    }

    /// JOIN-8.
    #[test]
    fn a_ticket_of_another_key_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        Identity::load_or_create_in(home.path()).unwrap();
        std::fs::remove_file(home.path().join(KEY_FILE)).unwrap();
        let refused = Identity::load_or_create_in(home.path()).err().unwrap().to_string();
        assert!(refused.contains("it was made for another key than boss.key"), "{refused}");
    }

    /// A file that was copied with more permissions is restricted again, without a warning.
    #[cfg(unix)]
    #[test]
    fn permissions_are_restricted_where_they_can_be() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Identity::load_or_create_in(home.path()).unwrap().warnings(), [""; 0]);
        let key = home.path().join(KEY_FILE);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Identity::load_or_create_in(home.path()).unwrap().warnings(), [""; 0]);
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// As a secret of Kubernetes, which is mounted for reading.
    #[cfg(unix)]
    #[test]
    fn permissions_that_cannot_be_changed_are_no_error() {
        let path = Path::new("/secret/boss.key");
        let fixed = |kind, mode| unless_fixed(path, mode, Err(std::io::Error::from(kind)));
        for kind in [ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied] {
            for mode in [0o644, 0o640, 0o440, 0o604] {
                let warning = fixed(kind, mode).unwrap().unwrap();
                let begin = format!(
                    "/secret/boss.key: others than its owner may read this secret (mode {mode:04o})"
                );
                assert!(warning.starts_with(&begin), "{warning}");
            }
            assert_eq!(fixed(kind, 0o611).unwrap(), None, "nobody else reads it");
        }
        assert!(fixed(ErrorKind::NotFound, 0o644).is_err());
        assert_eq!(unless_fixed(path, 0o644, Ok(())).unwrap(), None);
    }
}
