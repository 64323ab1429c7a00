//! Starts a server that speaks S3 and checks signatures (rclone's), behind a connection that can
//! break.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// The time limit of a start. rclone is fetched once on a machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The bytes that still pass before a break; less than a part of a file.
const LITTLE: usize = 1 << 20;

pub(crate) struct S3 {
    folder: tempfile::TempDir,
    /// The address that leads to the server.
    address: SocketAddr,
    /// The text that breaks the connection, a little after it was sent.
    breaks: Arc<Mutex<Option<String>>>,
    _server: Child,
}

impl S3 {
    /// Starts a server with an empty `bucket`.
    pub(crate) async fn start() -> Self {
        let started = async {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("bucket")).unwrap();
            let mut server = Command::new(rclone().await)
                .args([
                    "serve",
                    "s3",
                    "--config",
                    "",
                    "--addr",
                    "127.0.0.1:0",
                    "--auth-key",
                    "key,secret",
                ])
                .arg(folder.path())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
            let server_address = loop {
                let line = lines.next_line().await.unwrap().unwrap();
                if let Some(address) =
                    line.split_once("[http://").and_then(|(_, rest)| rest.split_once('/'))
                {
                    break address.0.parse().unwrap();
                }
            };
            // No further line is needed, but the server must not wait for a reader.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            let (line, breaks) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::default());
            let address = line.local_addr().unwrap();
            tokio::spawn(carry(line, server_address, Arc::clone(&breaks)));
            S3 { folder, address, breaks, _server: server }
        };
        tokio::time::timeout(PATIENCE, started).await.unwrap()
    }

    /// Returns the environment variables that name the server, with this secret.
    pub(crate) fn environment(&self, secret: &str) -> Vec<(&'static str, String)> {
        let endpoint = format!("http://{}", self.address);
        [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(name, value)| (name, value.to_string()))
        .into()
    }

    /// Returns the folder of its buckets.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Breaks each connection a little after this text went to the server.
    pub(crate) fn break_at(&self, text: &str) {
        *self.breaks.lock().unwrap() = Some(text.to_string());
    }
}

async fn rclone() -> PathBuf {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/rclone.py");
    let found = Command::new("python3").arg(tool).stderr(Stdio::inherit()).output().await.unwrap();
    assert!(found.status.success(), "tools/rclone.py: {}", found.status);
    PathBuf::from(String::from_utf8(found.stdout).unwrap().trim())
}

async fn carry(line: TcpListener, server: SocketAddr, breaks: Arc<Mutex<Option<String>>>) {
    while let Ok((client, _)) = line.accept().await {
        let breaks = breaks.clone();
        tokio::spawn(async move {
            let server = TcpStream::connect(server).await.unwrap();
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            let up = async {
                let mut buffer = vec![0; 64 << 10];
                // The number of bytes that may still pass.
                let mut left = usize::MAX;
                loop {
                    let read = from_client.read(&mut buffer).await.unwrap_or(0);
                    if breaks
                        .lock()
                        .unwrap()
                        .as_ref()
                        .is_some_and(|text| contains(&buffer[..read], text))
                    {
                        left = left.min(LITTLE);
                    }
                    let goes = read.min(left);
                    left -= goes;
                    if goes == 0 || to_server.write_all(&buffer[..goes]).await.is_err() {
                        return;
                    }
                }
            };
            // The direction that ends first ends both.
            tokio::select! {
                () = up => {}
                _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
            }
        });
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
