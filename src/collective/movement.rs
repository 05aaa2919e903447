use super::engine::Call;
use super::exchange::Exchange;
use super::group::Group;
use super::scratch::ScratchPool;
use super::spec::CollectiveSpec;
use crate::transport::TransportError;

pub(super) fn run(
    _: &CollectiveSpec,
    _: &Group,
    _: &mut [Call],
    _: &Exchange<'_>,
    _: &ScratchPool,
) -> Result<(), TransportError> {
    Ok(())
}
