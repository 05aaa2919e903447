//! Shardings, meshes and replica groups, each in its three spellings: device lists, iota tiles and named mesh axes.

use super::Parser;
use super::cursor::fail;
use super::error::{Result, hint};
use crate::hlo::shape::{is_tuple, leaves};
use crate::proto::hlo_instruction_details::ReplicaGroupList;
use crate::proto::mesh_proto::{IotaTransform, MeshAxis};
use crate::proto::named_sharding_proto::{DimensionSharding, ReductionOpProto};
use crate::proto::op_sharding::{ShardGroupType, Type};
use crate::proto::{
    AxisRefProto, CollectiveDeviceListProto, IotaReplicaGroupListProto, MeshAxesReplicaGroupListProto, MeshProto,
    NamedShardingProto, OpMetadata, OpSharding, ReplicaGroup, ShapeProto, axis_ref_proto,
};

impl<'a> Parser<'a> {
    /// `{replicated}`, `{devices=[2,1]0,1}`, `{mesh['x'=2], [{'x'}]}`, or a tuple of them in braces.
    pub(super) fn sharding(&mut self) -> Result<OpSharding> {
        let start = self.pos();
        if self.at(b'{') && !matches!(self.peek_second(), Some(b'{' | b'}')) {
            self.expect(b'{', "before the sharding")?;
            return self.single_sharding(start);
        }
        let tuple_shardings = self.list(b'{', b'}', "tuple sharding", |parser| {
            let start = parser.pos();
            parser.expect(b'{', "before the sharding")?;
            parser.single_sharding(start)
        })?;
        Ok(OpSharding { r#type: Type::TUPLE.into(), tuple_shardings, ..Default::default() })
    }

    /// What stands between a sharding's braces, and the closing one.
    fn single_sharding(&mut self, start: usize) -> Result<OpSharding> {
        if matches!(self.peek_word(), Some("mesh" | "maximal_mesh")) {
            let named_sharding = self.named_sharding()?.into();
            return Ok(OpSharding { named_sharding, ..Default::default() });
        }
        let mut sharding = OpSharding { r#type: Type::OTHER.into(), ..Default::default() };
        while !self.eat(b'}') {
            self.sharding_item(&mut sharding)?;
            self.eat(b',');
        }
        if sharding.r#type != Type::OTHER {
            // As XLA does: a word for the whole array overrides tiles, of which only listed devices are an error.
            sharding.tile_assignment_dimensions.clear();
            sharding.iota_reshape_dims.clear();
            sharding.iota_transpose_perm.clear();
            sharding.replicate_on_last_tile_dim = false;
            sharding.last_tile_dims.clear();
        }
        check_sharding(start, &sharding)?;
        Ok(sharding)
    }

    fn sharding_item(&mut self, sharding: &mut OpSharding) -> Result<()> {
        let start = self.pos();
        match self.word("a sharding, such as replicated or devices=[2,1]0,1")? {
            "replicated" => override_type(sharding, Type::REPLICATED),
            "maximal" => override_type(sharding, Type::MAXIMAL),
            "manual" => override_type(sharding, Type::MANUAL),
            "unknown" => override_type(sharding, Type::UNKNOWN),
            "unreduced" => override_type(sharding, Type::UNREDUCED),
            "last_tile_dim_replicate" => sharding.replicate_on_last_tile_dim = true,
            "last_tile_dims" => {
                self.expect(b'=', "after 'last_tile_dims'")?;
                let types = self.list(b'{', b'}', "list of subgroup types", Parser::subgroup_type)?;
                // XLA has a field of its own for the most common kind of subgroup.
                if types == [Type::REPLICATED] {
                    sharding.replicate_on_last_tile_dim = true;
                } else {
                    sharding.last_tile_dims = types.into_iter().map(Into::into).collect();
                }
            }
            "device" => {
                self.expect(b'=', "after 'device'")?;
                sharding.tile_assignment_devices = vec![self.integer()?];
            }
            "devices" => {
                self.expect(b'=', "after 'devices'")?;
                sharding.tile_assignment_dimensions =
                    self.list(b'[', b']', "tile dimensions", |parser| parser.integer())?;
                if self.eat_str("<=") {
                    (sharding.iota_reshape_dims, sharding.iota_transpose_perm) = self.iota()?;
                } else {
                    sharding.tile_assignment_devices = self.integers_without_brackets()?;
                }
            }
            "metadata" => {
                self.expect(b'=', "after 'metadata'")?;
                sharding.metadata = self.metadata_list()?;
            }
            kind @ ("shard_as" | "shard_like") => {
                sharding.is_shard_group = true;
                sharding.shard_group_id = self.integer()?;
                let group = if kind == "shard_as" { ShardGroupType::AS } else { ShardGroupType::LIKE };
                sharding.shard_group_type = group.into();
            }
            other => {
                const ITEMS: [&str; 12] = [
                    "replicated",
                    "maximal",
                    "manual",
                    "unknown",
                    "unreduced",
                    "last_tile_dim_replicate",
                    "last_tile_dims",
                    "device",
                    "devices",
                    "metadata",
                    "shard_as",
                    "shard_like",
                ];
                return Err(fail(start, format!("unknown sharding '{other}'{}", hint(other, ITEMS))));
            }
        }
        Ok(())
    }

    fn subgroup_type(&mut self) -> Result<Type> {
        let start = self.pos();
        match self.word("a subgroup type")? {
            "replicated" => Ok(Type::REPLICATED),
            "maximal" => Ok(Type::MAXIMAL),
            "manual" => Ok(Type::MANUAL),
            "unreduced" => Ok(Type::UNREDUCED),
            other => {
                let message =
                    format!("unknown subgroup type '{other}'; expected replicated, manual, unreduced or maximal");
                Err(fail(start, message))
            }
        }
    }

    /// `[4,2]T(1,0)`: the dimensions of an iota and their transposition, which may be left out for one dimension.
    fn iota(&mut self) -> Result<(Vec<i64>, Vec<i32>)> {
        let start = self.pos();
        let dims = self.list(b'[', b']', "iota dimensions", |parser| parser.integer())?;
        let perm = if self.eat_word("T") {
            self.list(b'(', b')', "transposition", |parser| parser.integer_i32())?
        } else {
            vec![0]
        };
        let mut sorted = perm.clone();
        sorted.sort_unstable();
        if sorted.iter().copied().ne(0..dims.len() as i32) {
            return Err(fail(
                start,
                format!("expected T( ) with a permutation of the iota's {} dimensions", dims.len()),
            ));
        }
        Ok((dims, perm))
    }

    fn integers_without_brackets(&mut self) -> Result<Vec<i64>> {
        let mut integers = vec![self.integer()?];
        while self.at(b',') && self.peek_second().is_some_and(|byte| byte.is_ascii_digit() || byte == b'-') {
            self.eat(b',');
            integers.push(self.integer()?);
        }
        Ok(integers)
    }

    fn named_sharding(&mut self) -> Result<NamedShardingProto> {
        let mesh = self.mesh()?;
        let mut sharding = NamedShardingProto::default();
        if self.eat(b',') || self.at(b'[') {
            self.named_sharding_start(&mesh, &mut sharding)?;
            while self.eat(b',') {
                self.named_sharding_item(&mesh, &mut sharding)?;
            }
        }
        self.expect(b'}', "after the sharding")?;
        sharding.mesh = mesh.into();
        Ok(sharding)
    }

    /// The part after the mesh: dimensions in brackets, or one word for all of them.
    fn named_sharding_start(&mut self, mesh: &MeshProto, sharding: &mut NamedShardingProto) -> Result<()> {
        if self.at(b'[') {
            sharding.dim_shardings =
                self.list(b'[', b']', "dimension shardings", |parser| parser.dimension_sharding(mesh))?;
            return Ok(());
        }
        if self.eat_word("replicated") {
            return Ok(());
        }
        if self.eat_word("manual") {
            sharding.manual_axes = all_axes(mesh);
            return Ok(());
        }
        self.named_sharding_item(mesh, sharding)
    }

    fn named_sharding_item(&mut self, mesh: &MeshProto, sharding: &mut NamedShardingProto) -> Result<()> {
        let start = self.pos();
        let item = self.word("replicated, unreduced, manual or metadata")?;
        let has_value = self.eat(b'=');
        match item {
            "replicated" => sharding.replicated_axes = self.axis_refs(mesh)?,
            "manual" => sharding.manual_axes = self.axis_refs(mesh)?,
            "unreduced" => {
                if has_value && !self.at(b'{') {
                    sharding.reduction_op = self.reduction_op()?.into();
                }
                sharding.unreduced_axes = if self.at(b'{') { self.axis_refs(mesh)? } else { all_axes(mesh) };
            }
            "metadata" => sharding.metadata = self.metadata_list()?,
            other => {
                let message =
                    format!("unknown part '{other}' of a sharding; expected replicated, unreduced, manual or metadata");
                return Err(fail(start, message));
            }
        }
        Ok(())
    }

    fn reduction_op(&mut self) -> Result<ReductionOpProto> {
        let start = self.pos();
        match self.word("a reduction")? {
            "sum" => Ok(ReductionOpProto::SUM),
            "max" => Ok(ReductionOpProto::MAX),
            "min" => Ok(ReductionOpProto::MIN),
            other => Err(fail(start, format!("unknown reduction '{other}'; expected sum, max or min"))),
        }
    }

    /// `{'x', 'y':(2)4, ?}`
    fn dimension_sharding(&mut self, mesh: &MeshProto) -> Result<DimensionSharding> {
        let mut is_closed = true;
        let axes = self.list(b'{', b'}', "axes", |parser| {
            if !is_closed {
                return Err(parser.expected("'}' after '?'"));
            }
            if parser.eat(b'?') {
                is_closed = false;
                return Ok(None);
            }
            parser.axis_ref(mesh).map(Some)
        })?;
        Ok(DimensionSharding { axes: axes.into_iter().flatten().collect(), is_closed, ..Default::default() })
    }

    fn axis_refs(&mut self, mesh: &MeshProto) -> Result<Vec<AxisRefProto>> {
        self.list(b'{', b'}', "axes", |parser| parser.axis_ref(mesh))
    }

    /// An axis by name or number, quoted or (older) not; `'x':(2)4` is a part of it.
    fn axis_ref(&mut self, mesh: &MeshProto) -> Result<AxisRefProto> {
        let start = self.pos();
        let name = match self.peek() {
            Some(b'\'' | b'"') => self.string()?,
            Some(byte) if byte.is_ascii_digit() => self.integer()?.to_string(),
            _ => self.name("a mesh axis")?.to_owned(),
        };
        let by_name = mesh.axes.iter().position(|axis| axis.name == name);
        let index = by_name.or_else(|| name.parse().ok().filter(|&index: &usize| index < mesh.axes.len()));
        let index = index.ok_or_else(|| {
            let hint = hint(&name, mesh.axes.iter().map(|axis| axis.name.as_str()));
            fail(start, format!("the mesh has no axis '{name}'{hint}"))
        })?;
        let mut axis = AxisRefProto { mesh_axis_index: index as i64, ..Default::default() };
        if self.eat(b':') {
            let start = self.pos();
            self.expect(b'(', "before the size in front of the part of the axis")?;
            let pre_size = self.integer()?;
            self.expect(b')', "after the size in front of the part of the axis")?;
            let size = self.integer()?;
            if pre_size < 1 || size < 2 {
                return Err(fail(start, "a part of an axis is at least 2 wide"));
            }
            axis.sub_axis_info = axis_ref_proto::SubAxis { pre_size, size, ..Default::default() }.into();
        }
        Ok(axis)
    }

    /// `mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0))` or `maximal_mesh[device_id=3]`.
    fn mesh(&mut self) -> Result<MeshProto> {
        let start = self.pos();
        let mut mesh = MeshProto::default();
        if self.eat_word("maximal_mesh") {
            self.expect(b'[', "after 'maximal_mesh'")?;
            if !(self.eat_word("device_id") || self.eat_word("device_ids")) {
                return Err(self.expected("device_id="));
            }
            self.expect(b'=', "after 'device_id'")?;
            mesh.device_ids = vec![self.integer()?];
            self.expect(b']', "after the device")?;
            return Ok(mesh);
        }
        self.word("mesh")?;
        mesh.axes = self.list(b'[', b']', "mesh axes", |parser| {
            let name = if parser.at(b'\'') || parser.at(b'"') {
                parser.string()?
            } else {
                parser.word("an axis name")?.to_owned()
            };
            parser.expect(b'=', "after the axis name")?;
            let start = parser.pos();
            let size = parser.integer()?;
            if size < 1 {
                Err(fail(start, "an axis is at least 1 wide"))
            } else {
                Ok(MeshAxis { name, size, ..Default::default() })
            }
        })?;
        let devices = product(mesh.axes.iter().map(|axis| axis.size));
        let devices = devices.ok_or_else(|| fail(start, "the mesh has more devices than 64 bits can count"))?;
        if self.at_device_ids() {
            self.eat(b',');
            self.eat_word("device_ids");
            self.expect(b'=', "after 'device_ids'")?;
            self.device_ids(&mut mesh, devices)?;
        }
        Ok(mesh)
    }

    /// The comma after a mesh may also start the next part of the sharding.
    fn at_device_ids(&mut self) -> bool {
        self.at(b',') && self.peek_second() == Some(b'd')
    }

    fn device_ids(&mut self, mesh: &mut MeshProto, devices: i64) -> Result<()> {
        self.expect(b'(', "before the device ids")?;
        let start = self.pos();
        let given = if self.at(b'[') {
            let (reshape_dims, perm) = self.iota()?;
            let given = product(reshape_dims.iter().copied());
            let transpose_perm = perm.into_iter().map(i64::from).collect();
            mesh.iota_transform = IotaTransform { reshape_dims, transpose_perm, ..Default::default() }.into();
            given
        } else {
            mesh.device_ids = self.integers_without_brackets()?;
            i64::try_from(mesh.device_ids.len()).ok()
        };
        self.expect(b')', "after the device ids")?;
        if given != Some(devices) {
            return Err(fail(start, format!("the mesh's axes make {devices} devices, its device ids do not")));
        }
        Ok(())
    }

    /// `{{0,1},{2,3}}`, `[2,2]<=[4]` or `mesh['x'=2,'y'=2] {'x'}`.
    pub(super) fn replica_groups(&mut self) -> Result<ReplicaGroupList> {
        let start = self.pos();
        if self.at(b'{') {
            let replica_groups = self.list(b'{', b'}', "replica groups", |parser| {
                let replica_ids = parser.list(b'{', b'}', "replica group", |parser| parser.integer())?;
                Ok(ReplicaGroup { replica_ids, ..Default::default() })
            })?;
            return Ok(CollectiveDeviceListProto { replica_groups, ..Default::default() }.into());
        }
        if matches!(self.peek_word(), Some("mesh" | "maximal_mesh")) {
            let mesh = self.mesh()?;
            self.eat(b',');
            let axes = self.axis_refs(&mesh)?;
            return Ok(MeshAxesReplicaGroupListProto { mesh: mesh.into(), axes, ..Default::default() }.into());
        }
        let dims = self.list(b'[', b']', "replica groups", |parser| parser.integer())?;
        if !self.eat_str("<=") {
            return Err(self.expected("'<=' after the groups' dimensions"));
        }
        let (iota_reshape_dims, iota_transpose_perm) = self.iota()?;
        let &[num_replica_groups, num_devices_per_group] = dims.as_slice() else {
            return Err(fail(start, "expected [groups,devices per group] in front of '<='"));
        };
        let listed = product(dims.into_iter());
        if listed.is_none() || listed != product(iota_reshape_dims.iter().copied()) {
            return Err(fail(start, "the groups and the iota after '<=' have different sizes"));
        }
        let list = IotaReplicaGroupListProto {
            num_replica_groups,
            num_devices_per_group,
            iota_reshape_dims,
            iota_transpose_perm,
            ..Default::default()
        };
        Ok(list.into())
    }

    /// A tuple's sharding may be given once for all of its leaves.
    pub(super) fn spread_over_tuple(
        &mut self,
        start: usize,
        sharding: OpSharding,
        shape: &ShapeProto,
    ) -> Result<OpSharding> {
        if !is_tuple(shape) || sharding.r#type == Type::TUPLE {
            return Ok(sharding);
        }
        let leaves = leaves(shape).len().max(1);
        let size = 1 + (sharding.tile_assignment_devices.len() + sharding.named_sharding.mesh.device_ids.len()) / 64;
        self.charge(start, leaves.saturating_mul(size))?;
        Ok(OpSharding { r#type: Type::TUPLE.into(), tuple_shardings: vec![sharding; leaves], ..Default::default() })
    }

    /// One operation's metadata in braces, or a list of them in further braces.
    fn metadata_list(&mut self) -> Result<Vec<OpMetadata>> {
        if self.at(b'{') && self.peek_second() == Some(b'{') {
            return self.list(b'{', b'}', "metadata", Parser::metadata);
        }
        Ok(vec![self.metadata()?])
    }
}

fn all_axes(mesh: &MeshProto) -> Vec<AxisRefProto> {
    (0..mesh.axes.len() as i64).map(|mesh_axis_index| AxisRefProto { mesh_axis_index, ..Default::default() }).collect()
}

/// `None` if a factor is not positive or the product overflows.
fn product(mut sizes: impl Iterator<Item = i64>) -> Option<i64> {
    sizes.try_fold(1i64, |product, size| if size > 0 { product.checked_mul(size) } else { None })
}

/// Of several words for the whole array the first in this order counts, wherever it stands.
fn override_type(sharding: &mut OpSharding, kind: Type) {
    const ORDER: [Type; 5] = [Type::REPLICATED, Type::MAXIMAL, Type::MANUAL, Type::UNKNOWN, Type::UNREDUCED];
    let place = |kind: Option<Type>| ORDER.iter().position(|&it| Some(it) == kind).unwrap_or(ORDER.len());
    if place(Some(kind)) < place(sharding.r#type.as_known()) {
        sharding.r#type = kind.into();
    }
}

fn check_sharding(start: usize, sharding: &OpSharding) -> Result<()> {
    let devices = sharding.tile_assignment_devices.len() as i64;
    if sharding.r#type == Type::MAXIMAL {
        return if devices == 1 { Ok(()) } else { Err(fail(start, "a maximal sharding has one device: device=0")) };
    }
    let dims = &sharding.tile_assignment_dimensions;
    if sharding.r#type != Type::OTHER {
        return if devices > 0 { Err(fail(start, "this kind of sharding has no devices")) } else { Ok(()) };
    }
    if dims.is_empty() {
        return Err(fail(start, "expected replicated, maximal, manual, unreduced, unknown or devices=[...]"));
    }
    let tiles = product(dims.iter().copied());
    let listed = if devices > 0 { Some(devices) } else { product(sharding.iota_reshape_dims.iter().copied()) };
    match (tiles, listed) {
        (Some(tiles), Some(listed)) if tiles == listed => Ok(()),
        (Some(tiles), Some(listed)) => Err(fail(start, format!("the sharding has {tiles} tiles and {listed} devices"))),
        _ => Err(fail(start, "the sharding's tiles are not positive or too many")),
    }
}
