//! Callers without a ticket.

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

/// The configuration of a QUIC client that accepts any key as the boss's and shows no key of its
/// own.
static CONFIG: LazyLock<ClientConfig> = LazyLock::new(|| {
    let mut crypto = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])
    .unwrap()
    .dangerous()
    .with_custom_certificate_verifier(Arc::new(trusting::Anybody))
    .with_no_client_auth();
    crypto.alpn_protocols = vec![b"bossman".to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto).unwrap()))
});

/// Dials a boss without a ticket, and returns why that fails.
pub async fn dial_without_ticket(endpoint: &Endpoint, boss: SocketAddr) -> String {
    match endpoint.connect_with(CONFIG.clone(), boss, "bossman").unwrap().await {
        Err(e) => e.to_string(),
        // The client's side of the handshake may end before the boss refuses.
        Ok(quic) => quic.closed().await.to_string(),
    }
}

mod trusting {
    //! A verifier that accepts any key.

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    #[derive(Debug)]
    pub(super) struct Anybody;

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    }
}
