use std::time::Duration;

use super::{ClusterError, Environment};

/// Where the metadata server is, for Google's client libraries and for JAX.
pub const HOST: &str = "GCE_METADATA_HOST";
pub const IP: &str = "GCE_METADATA_IP";

const DEFAULT: &str = "metadata.google.internal";
const LIMIT: Duration = Duration::from_secs(5);
const MAX_BYTES: u64 = 1 << 20;

/// The server that tells a machine of Google's cloud about itself.
pub struct Metadata {
    address: String,
    agent: ureq::Agent,
}

impl Metadata {
    pub fn new(environment: &Environment) -> Metadata {
        let address = environment.get(IP).or(environment.get(HOST)).unwrap_or(DEFAULT).to_owned();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(LIMIT))
            // The server is part of this machine, so a proxy must not be asked for it.
            .proxy(None)
            .max_redirects(0)
            .build();
        Metadata { address, agent: config.into() }
    }

    /// An attribute of this machine; `None` if it has none of this name.
    pub fn attribute(&self, name: &str) -> Result<Option<String>, ClusterError> {
        let url = format!("http://{}/computeMetadata/v1/instance/attributes/{name}", self.address);
        let answer = self.agent.get(&url).header("Metadata-Flavor", "Google").call();
        let mut answer = answer.map_err(|error| self.error(error.to_string()))?;
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            status => return Err(self.error(format!("it answers {status} when asked for '{name}'"))),
        }
        let text = answer.body_mut().with_config().limit(MAX_BYTES).read_to_string();
        text.map(Some).map_err(|error| self.error(error.to_string()))
    }

    pub fn error(&self, reason: String) -> ClusterError {
        ClusterError::Metadata { address: self.address.clone(), reason }
    }
}
