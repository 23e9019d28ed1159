//! Predictable loopback addresses for pods, so that a pod can refer to its siblings before they exist.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

/// The first address for a pod. Lower addresses belong to the control plane.
const FIRST: u8 = 10;

/// The number of addresses of one set of pods, and thereby of its ordinals.
const BLOCK: u8 = 10;

/// The addresses of a network `127.A.B`, shared by all process nodes on it.
pub struct Addresses {
    net: [u8; 2],
    blocks: Mutex<BTreeMap<u8, Block>>,
}

/// The owner of a block of addresses.
enum Block {
    /// One set of pods; the ordinal of a pod selects its address.
    Set(SetName),
    /// Pods of one namespace whose names have no ordinal.
    Single { namespace: String, pods: Vec<Option<String>> },
}

/// The namespace and the name of a set of pods: `prod` and `etcd` for the pod `prod/etcd-2`.
type SetName = (String, String);

impl Addresses {
    /// Creates the address pool of the network `127.A.B`.
    pub fn new(net: &str) -> Arc<Self> {
        let numbers: Vec<u8> = net.split('.').map_while(|number| number.parse().ok()).collect();
        let [127, a, b] = numbers[..] else { panic!("{net} is not a network of the form 127.A.B") };
        Arc::new(Self { net: [a, b], blocks: Mutex::default() })
    }

    /// Returns the address of a pod, which need not exist: 10, 20, 30 and so on for a set, plus the pod's ordinal. Pods
    /// whose names have no ordinal get the next free address of a block for such pods.
    pub fn pod_address(&self, namespace: &str, pod: &str) -> Ipv4Addr {
        match pod.rsplit_once('-') {
            Some((set, ordinal)) if let Ok(ordinal) = ordinal.parse::<u8>() => {
                assert!(ordinal < BLOCK, "{pod}: a set has at most {BLOCK} pods here");
                self.address(self.block_of_set(namespace, set), ordinal)
            }
            _ => self.single_address(namespace, pod),
        }
    }

    fn block_of_set(&self, namespace: &str, set: &str) -> u8 {
        let name = (namespace.to_owned(), set.to_owned());
        let mut blocks = self.blocks.lock().expect("the lock is not poisoned");
        let known = blocks.iter().find(|(_, block)| matches!(block, Block::Set(owner) if *owner == name));
        match known.map(|(number, _)| *number) {
            Some(number) => number,
            None => insert(&mut blocks, Block::Set(name)),
        }
    }

    fn single_address(&self, namespace: &str, pod: &str) -> Ipv4Addr {
        let mut blocks = self.blocks.lock().expect("the lock is not poisoned");
        let mut own = blocks.iter_mut().filter_map(|(number, block)| match block {
            Block::Single { namespace: owner, pods } if owner == namespace => Some((*number, pods)),
            _ => None,
        });
        let mut free = None;
        let known = own.find_map(|(number, pods)| {
            for (index, known) in (0_u8..).zip(pods.iter()) {
                match known {
                    Some(known) if known == pod => return Some((number, index)),
                    Some(_) => {}
                    None => drop(free.get_or_insert((number, index))),
                }
            }
            None
        });
        let (number, index) = known.or(free).unwrap_or_else(|| {
            let block =
                Block::Single { namespace: namespace.to_owned(), pods: vec![None; usize::from(BLOCK)] };
            (insert(&mut blocks, block), 0)
        });
        if let Some(Block::Single { pods, .. }) = blocks.get_mut(&number) {
            pods[usize::from(index)] = Some(pod.to_owned());
        }
        self.address(number, index)
    }

    fn address(&self, block: u8, index: u8) -> Ipv4Addr {
        let [a, b] = self.net;
        Ipv4Addr::new(127, a, b, FIRST + block * BLOCK + index)
    }

    /// Returns the common address of all pods without a process, where no process listens.
    pub fn idle_address(&self) -> Ipv4Addr {
        let [a, b] = self.net;
        Ipv4Addr::new(127, a, b, FIRST - 1)
    }

    /// Releases the address of a pod whose name has no ordinal. The addresses of sets remain reserved.
    pub fn release_pod(&self, namespace: &str, pod: &str) {
        for block in self.blocks.lock().expect("the lock is not poisoned").values_mut() {
            if let Block::Single { namespace: owner, pods } = block
                && owner == namespace
            {
                pods.iter_mut().filter(|known| known.as_deref() == Some(pod)).for_each(|known| *known = None);
            }
        }
    }

    /// Releases the addresses of a namespace.
    pub fn release(&self, namespace: &str) {
        let is_other = |block: &Block| match block {
            Block::Set((owner, _)) | Block::Single { namespace: owner, .. } => owner != namespace,
        };
        self.blocks.lock().expect("the lock is not poisoned").retain(|_, block| is_other(block));
    }
}

/// Stores a block under the first free number.
fn insert(blocks: &mut BTreeMap<u8, Block>, block: Block) -> u8 {
    let free = (0..(u8::MAX - FIRST) / BLOCK).find(|number| !blocks.contains_key(number));
    let free = free.expect("an address for another set of pods");
    blocks.insert(free, block);
    free
}
