//! The certificates of a job.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
};

/// How a process shows that it belongs to its job, and what it asks others to show.
#[derive(Clone)]
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be used.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// They could not be made.
    #[error("cannot make certificates: {0}")]
    Generation(String),
}

/// What goes before the 32 bytes of an Ed25519 key in its PKCS #8 form (RFC 8410).
const ED25519_PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

impl Identity {
    /// The file of the certificates of the authorities that are trusted, in PEM form, in the folder of
    /// [`Identity::of_folder`]. The three names are those of a Kubernetes secret of the type `kubernetes.io/tls`.
    pub const AUTHORITY_FILE: &str = "ca.crt";
    /// The file of the process's certificate, followed by those between it and the authority.
    pub const CERTIFICATE_FILE: &str = "tls.crt";
    /// The file of its private key.
    pub const KEY_FILE: &str = "tls.key";

    /// A fresh key, certified by an authority that everyone makes alike who knows the secret.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn of_secret(secret: &[u8; 32]) -> Result<Identity, IdentityError> {
        let failed = |error: rcgen::Error| IdentityError::Generation(error.to_string());
        let key = PrivatePkcs8KeyDer::from([&ED25519_PKCS8[..], secret].concat());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519).map_err(failed)?;
        let mut authority = named("spmd-run job");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let trusted = authority.self_signed(&key).map_err(failed)?.der().clone();
        let own_key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
        let own = named("spmd-run process").signed_by(&own_key, &Issuer::new(authority, key)).map_err(failed)?;
        let own_key = PrivatePkcs8KeyDer::from(own_key.serialize_der());
        let mut roots = RootCertStore::empty();
        let made =
            roots.add(trusted).and_then(|()| Identity::new(roots, vec![own.der().clone()], own_key.into(), provider()));
        made.map_err(|error| IdentityError::Generation(error.to_string()))
    }

    /// What is in the files of a folder: see [`Identity::AUTHORITY_FILE`].
    ///
    /// # Errors
    /// A file is missing or something else than it should be, the certificate is not of the authority, not valid now, or not
    /// of this key.
    pub fn of_folder(folder: &Path) -> Result<Identity, IdentityError> {
        let (authority, certificate, key) =
            (folder.join(Self::AUTHORITY_FILE), folder.join(Self::CERTIFICATE_FILE), folder.join(Self::KEY_FILE));
        let mut roots = RootCertStore::empty();
        for trusted in certificates(&authority)? {
            roots.add(trusted).map_err(|error| wrong(&authority, error))?;
        }
        let chain = certificates(&certificate)?;
        check(&chain, &roots).map_err(|error| match error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                wrong(&certificate, format!("it is not of the authority in {}", authority.display()))
            }
            // What openssl makes unless it is told of extensions.
            error if error.to_string().contains("UnsupportedCertVersion") => wrong(
                &certificate,
                "it is of X.509 version 1, and version 3 is needed: openssl x509 -req takes -extfile",
            ),
            error => wrong(&certificate, error),
        })?;
        let own_key = PrivateKeyDer::from_pem_file(&key).map_err(|error| wrong(&key, error))?;
        Identity::new(roots, chain, own_key, provider()).map_err(|error| match error {
            Error::InconsistentKeys(_) => wrong(&key, format!("it is not the key of {}", certificate.display())),
            error => wrong(&key, error),
        })
    }

    pub(super) fn new(
        roots: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Identity, Error> {
        let clients = clients(&roots)?;
        let members = Arc::new(Members { roots, algorithms: provider.signature_verification_algorithms });
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13])?;
        let client = client.dangerous().with_custom_certificate_verifier(members);
        let mut client = client.with_client_auth_cert(chain.clone(), key.clone_key())?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
        let mut server = server.with_client_cert_verifier(clients).with_single_cert(chain, key)?;
        server.send_tls13_tickets = 0;
        Ok(Identity { client: Arc::new(client), server: Arc::new(server) })
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// A name that TLS wants and nobody looks at.
    pub(super) fn name() -> ServerName<'static> {
        ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(hidden)")
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn wrong(path: &Path, reason: impl ToString) -> IdentityError {
    IdentityError::File { path: path.to_owned(), reason: reason.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all.map_err(|error| wrong(path, error))? {
        none if none.is_empty() => Err(wrong(path, "it has no certificate in PEM form")),
        all => Ok(all),
    }
}

/// Whether others will accept this certificate, as far as they trust the same authorities. A process calls and is called.
fn check(chain: &[CertificateDer<'_>], roots: &RootCertStore) -> Result<(), Error> {
    let (own, between) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
    let algorithms = provider().signature_verification_algorithms;
    let parsed = ParsedCertificate::try_from(own)?;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, between, UnixTime::now(), algorithms.all)?;
    clients(roots)?.verify_client_cert(own, between, UnixTime::now()).map(drop)
}

fn clients(roots: &RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let members = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider());
    members.build().map_err(|error| Error::General(error.to_string()))
}

/// Accepts every member of the job as a server, wherever it runs.
#[derive(Debug)]
struct Members {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Members {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
