//! The processes of a job as one of them sees them: itself alone, or a member of a rendezvous.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rendezvous::Rendezvous;
