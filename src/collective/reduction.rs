use super::engine::Call;
use super::exchange::Exchange;
use super::group::Group;
use super::scratch::ScratchPool;
use super::spec::{CollectiveSpec, ReduceOp};
use crate::transport::TransportError;

pub(super) fn all_reduce(
    _: &CollectiveSpec,
    _: ReduceOp,
    _: &Group,
    _: &mut [Call],
    _: &Exchange<'_>,
    _: &ScratchPool,
) -> Result<(), TransportError> {
    Ok(())
}
pub(super) fn reduce_scatter(
    _: &CollectiveSpec,
    _: ReduceOp,
    _: usize,
    _: &Group,
    _: &mut [Call],
    _: &Exchange<'_>,
    _: &ScratchPool,
) -> Result<(), TransportError> {
    Ok(())
}
