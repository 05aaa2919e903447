use super::*;
use crate::hlo;

/// Two slices of two hosts with a process each, whose links carry 1000 and 100 bytes per second.
fn four(devices_per_process: u32) -> Topology {
    Topology {
        slices: 2,
        hosts_per_slice: 2,
        processes_per_host: 1,
        devices_per_process,
        ici: Link { bytes_per_second: 1e9, latency_seconds: 0.0 },
        dcn: Link { bytes_per_second: 1e6, latency_seconds: 0.0 },
    }
}

fn timing(topology: &Topology, kind: Kind, operand_bytes: u64, groups: &[Vec<u32>]) -> Timing {
    time(&topology.cluster(), Transfer { kind, operand_bytes, widening: 1 }, groups)
}

const MIB: u64 = 1 << 20;

/// Every host sends its half of the data to the other slice, in both halves of an all-reduce together once.
#[test]
fn islands_send_everything_to_other_slices_once() {
    let all = [(0..4).collect::<Vec<u32>>()];
    let dcn = |kind, bytes| {
        let timing = timing(&four(1), kind, bytes, &all);
        assert_eq!(timing.limit, Limit::DcnBandwidth, "{kind:?}");
        timing.dcn_bytes
    };
    assert_eq!(dcn(Kind::AllReduce, 16 * MIB), 8.0 * MIB as f64);
    assert_eq!(dcn(Kind::AllGather, 4 * MIB), 4.0 * MIB as f64);
    assert_eq!(dcn(Kind::ReduceScatter, 16 * MIB), 4.0 * MIB as f64);
    assert_eq!(dcn(Kind::AllToAll, 16 * MIB), 8.0 * MIB as f64);
    // The root's host sends all of it.
    assert_eq!(dcn(Kind::Broadcast, 16 * MIB), 16.0 * MIB as f64);
}

#[test]
fn processes_of_a_host_share_its_link() {
    let shared = Topology { hosts_per_slice: 1, processes_per_host: 2, ..four(1) };
    let all = [(0..4).collect::<Vec<u32>>()];
    assert_eq!(timing(&shared, Kind::AllReduce, 16 * MIB, &all).dcn_bytes, 16.0 * MIB as f64);
}

#[test]
fn one_slice_has_slices_of_elements() {
    let one = Topology { slices: 1, hosts_per_slice: 4, ..four(1) };
    let timing = timing(&one, Kind::AllReduce, 16 * MIB, &[(0..4).collect()]);
    assert_eq!((timing.algorithm, timing.limit, timing.dcn_bytes), (Algorithm::Slices, Limit::IciBandwidth, 0.0));
    // Three quarters of the data twice.
    assert_eq!(timing.ici_bytes, 24.0 * MIB as f64);
}

#[test]
fn groups_run_at_the_same_time() {
    let pairs_across = [vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
    let timing_of = |groups: &[Vec<u32>]| timing(&four(2), Kind::AllReduce, 4 * MIB, groups);
    assert_eq!(timing_of(&pairs_across).dcn_bytes, 2.0 * timing_of(&pairs_across[..1]).dcn_bytes);
    let inside = timing_of(&[vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]]);
    assert_eq!((inside.seconds, inside.algorithm, inside.limit), (0.0, Algorithm::InProcess, Limit::Nothing));
}

#[test]
fn latency_limits_small_messages() {
    let far = Topology { dcn: Link { bytes_per_second: 1e12, latency_seconds: 1e-3 }, ..four(1) };
    let timing = timing(&far, Kind::AllReduce, 4, &[(0..4).collect()]);
    assert_eq!((timing.limit, timing.algorithm), (Limit::DcnLatency, Algorithm::Direct));
    assert!((timing.seconds - 1e-3).abs() < 1e-6, "{}", timing.seconds);
}

/// A layer of a model over 51,200 devices: 64 slices of 200 hosts of 4 devices.
#[test]
fn fifty_thousand_devices() {
    let text = "HloModule step, is_scheduled=false, num_partitions=51200

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

body {
  p = (s32[], f32[1024,1024]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[1024,1024] get-tuple-element(p), index=1
  d = f32[1024,1024] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r = f32[1024,1024] all-reduce(d), channel_id=1, replica_groups=[12800,4]<=[51200], use_global_device_ids=true, to_apply=add
  ROOT t = (s32[], f32[1024,1024]) tuple(next, r)
}

condition {
  p = (s32[], f32[1024,1024]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(24)
  ROOT less = pred[] compare(i, limit), direction=LT
}

ENTRY main {
  x = f32[1024,1024] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[1024,1024]) tuple(zero, x)
  loop = (s32[], f32[1024,1024]) while(start), condition=condition, body=body
  y = f32[1024,1024] get-tuple-element(loop), index=1
  ROOT g = f32[1024,1024] all-reduce(y), channel_id=2, replica_groups=[4,12800]<=[12800,4]T(1,0), use_global_device_ids=true, to_apply=add
}";
    let module = hlo::parse(text, "m.hlo").unwrap();
    let link = |text: &str| text.parse::<Link>().unwrap();
    let topology = Topology {
        slices: 64,
        hosts_per_slice: 200,
        processes_per_host: 1,
        devices_per_process: 4,
        ici: link("100GB/s,1us"),
        dcn: link("6GB/s,50us"),
    };
    let device = Device { flops: Some(1e14), ..Device::default() };
    let prediction = simulate(&module, (1, 51_200), &topology, &device).unwrap();
    assert_eq!(prediction.device_count, 51_200);
    let [of_layer, of_gradients] = &prediction.collectives[..] else { panic!("two collectives") };
    assert_eq!((of_layer.runs.times, of_layer.timing.algorithm), (24, Algorithm::InProcess));
    assert_eq!((of_gradients.groups, of_gradients.group_size), (4, 12_800));
    assert_eq!(of_gradients.timing.algorithm, Algorithm::Islands);
    // 24 products of 2 × 1024³ operations.
    assert!((prediction.compute_seconds - 24.0 * 2.0 * 1024f64.powi(3) / 1e14).abs() < 1e-4);
}
