//! TLS 1.3 that authenticates both ends by pinned keys.
//!
//! Every holder of the ticket derives the same Ed25519 key pair from its secret, the join key. The
//! boss shows its own key, whose fingerprint is in the ticket. A worker shows the join key, to the
//! boss and to other workers. TLS makes each end prove that it has the private key that it shows.
//! So nobody without the ticket completes a handshake, and the secret itself is never sent.

use crate::error::LinkError;
use crate::trust::identity::{fingerprint, Identity};
use crate::trust::ticket::Ticket;
use crate::trust::token_clock::TokenClock;
use aws_lc_rs::hkdf::{Salt, HKDF_SHA256};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls13_signature, CryptoProvider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;

const ALPN: &[u8] = b"bossman";
/// The name in certificates. It means nothing, because keys are pinned.
pub(crate) const SERVER_NAME: &str = "bossman";

/// Makes the server configuration of a boss.
pub(crate) fn boss_server_config(identity: &Identity) -> Result<quinn::ServerConfig, LinkError> {
    let join = join_key(identity.ticket())?;
    server(&identity.key, fingerprint(&join.subject_public_key_info()))
}

/// Makes the server configuration of a worker, for other workers.
pub(crate) fn worker_server_config(ticket: &Ticket) -> Result<quinn::ServerConfig, LinkError> {
    let join = join_key(ticket)?;
    server(&join, fingerprint(&join.subject_public_key_info()))
}

/// Makes the client configuration of a worker that dials the boss.
pub(crate) fn boss_client_config(ticket: &Ticket) -> Result<quinn::ClientConfig, LinkError> {
    client(&join_key(ticket)?, ticket.boss)
}

/// Makes the client configuration of a worker that dials another worker.
pub(crate) fn worker_client_config(ticket: &Ticket) -> Result<quinn::ClientConfig, LinkError> {
    let join = join_key(ticket)?;
    client(&join, fingerprint(&join.subject_public_key_info()))
}

/// Derives the key pair of all holders of the ticket (RFC 5869, RFC 8410).
fn join_key(ticket: &Ticket) -> Result<KeyPair, LinkError> {
    let key = Salt::new(HKDF_SHA256, b"bossman join key 1").extract(&ticket.secret);
    let mut seed = [0u8; 32];
    let filled = key.expand(&[b"ed25519"], HKDF_SHA256).and_then(|okm| okm.fill(&mut seed));
    filled.map_err(|_| LinkError::tls("the join key cannot be derived"))?;
    // PKCS #8 for Ed25519 is this prefix and the seed.
    let mut der = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    der.extend(seed);
    KeyPair::try_from(der).map_err(LinkError::tls)
}

fn certificate(
    key: &KeyPair,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), LinkError> {
    let params = CertificateParams::new([SERVER_NAME.to_string()]).map_err(LinkError::tls)?;
    let certificate = params.self_signed(key).map_err(LinkError::tls)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialized_der().to_vec()));
    Ok((vec![certificate.der().clone()], key))
}

fn server(key: &KeyPair, accepts: [u8; 32]) -> Result<quinn::ServerConfig, LinkError> {
    let (chain, key) = certificate(key)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(LinkError::tls)?
        .with_client_cert_verifier(Arc::new(PinnedKey::new(accepts)))
        .with_single_cert(chain, key)
        .map_err(LinkError::tls)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    let config = QuicServerConfig::try_from(config).map_err(LinkError::tls)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(config));
    config.time_source(Arc::new(TokenClock));
    Ok(config)
}

fn client(key: &KeyPair, accepts: [u8; 32]) -> Result<quinn::ClientConfig, LinkError> {
    let (chain, key) = certificate(key)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(LinkError::tls)?
        .dangerous() // rustls's name for verifiers of one's own. This one pins the key.
        .with_custom_certificate_verifier(Arc::new(PinnedKey::new(accepts)))
        .with_client_auth_cert(chain, key)
        .map_err(LinkError::tls)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_early_data = false;
    let config = QuicClientConfig::try_from(config).map_err(LinkError::tls)?;
    Ok(quinn::ClientConfig::new(Arc::new(config)))
}

/// Offers AES-128 first. No known attack makes AES-256 safer in practice, and AES-128 is a third
/// faster for gigabytes of tensors.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Accepts certificates with one public key, and ignores everything else in them.
#[derive(Debug)]
struct PinnedKey {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl PinnedKey {
    fn new(fingerprint: [u8; 32]) -> Self {
        PinnedKey { fingerprint, provider: provider() }
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        if fingerprint(parsed.subject_public_key_info().as_ref()) == self.fingerprint {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn refuse_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".into()))
    }
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

impl ClientCertVerifier for PinnedKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
