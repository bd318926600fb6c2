//! The interfaces or edges of a network, which are found by number in one step.

use super::edge::Edge;
use super::network::Interface;

/// The place of a number that no port has.
const NONE: u16 = u16::MAX;

/// A port with a number of its own among those of its kind.
pub(super) trait Numbered {
    fn number(&self) -> u16;
}

impl Numbered for Interface {
    fn number(&self) -> u16 {
        self.id.0
    }
}

impl Numbered for Edge {
    fn number(&self) -> u16 {
        self.id.0
    }
}

/// Ports of one kind, in the order in which they were added.
#[derive(Debug)]
pub(super) struct Ports<T> {
    ports: Vec<T>,
    /// The place in `ports` for each number up to the highest so far, because each copy of a frame looks a port up. Numbers
    /// have 16 bits, so this has at most 128 KiB.
    places: Vec<u16>,
    /// The number of places that were read to find a port.
    #[cfg(test)]
    pub(super) lookups: std::cell::Cell<usize>,
}

impl<T> Default for Ports<T> {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            places: Vec::new(),
            #[cfg(test)]
            lookups: std::cell::Cell::default(),
        }
    }
}

impl<T: Numbered> Ports<T> {
    #[inline]
    fn place(&self, number: u16) -> Option<usize> {
        #[cfg(test)]
        self.lookups.set(self.lookups.get() + 1);
        self.places.get(usize::from(number)).filter(|place| **place != NONE).map(|place| usize::from(*place))
    }

    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<&T> {
        self.place(number).map(|place| &self.ports[place])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut T> {
        self.place(number).map(|place| &mut self.ports[place])
    }

    /// Adds a port. A port that has its number already is replaced.
    pub(super) fn insert(&mut self, port: T) {
        match self.get_mut(port.number()) {
            Some(replaced) => *replaced = port,
            None => {
                let number = usize::from(port.number());
                self.places.resize(self.places.len().max(number + 1), NONE);
                self.places[number] = to_place(self.ports.len());
                self.ports.push(port);
            }
        }
    }

    /// Removes and returns the port with this number.
    pub(super) fn remove(&mut self, number: u16) -> Option<T> {
        let place = self.place(number)?;
        let removed = self.ports.remove(place);
        self.places[usize::from(number)] = NONE;
        for (place, port) in self.ports.iter().enumerate().skip(place) {
            self.places[usize::from(port.number())] = to_place(place);
        }
        Some(removed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.ports.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.ports.iter_mut()
    }
}

fn to_place(place: usize) -> u16 {
    u16::try_from(place).ok().filter(|place| *place != NONE).expect("control limits the ports of a network")
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Numbered for (u16, char) {
        fn number(&self) -> u16 {
            self.0
        }
    }

    fn ports(list: &[(u16, char)]) -> Ports<(u16, char)> {
        let mut ports = Ports::default();
        list.iter().for_each(|port| ports.insert(*port));
        ports
    }

    fn found(ports: &Ports<(u16, char)>, numbers: [u16; 4]) -> [Option<char>; 4] {
        numbers.map(|number| ports.get(number).map(|port| port.1))
    }

    #[test]
    fn ports_are_found_by_number_after_others_are_removed() {
        let mut ports = ports(&[(5, 'a'), (0, 'b'), (65_535, 'c'), (7, 'd')]);
        assert_eq!(found(&ports, [5, 0, 65_535, 7]), [Some('a'), Some('b'), Some('c'), Some('d')]);
        assert_eq!((ports.remove(0), ports.remove(0), ports.remove(6)), (Some((0, 'b')), None, None));
        assert_eq!(found(&ports, [5, 0, 65_535, 7]), [Some('a'), None, Some('c'), Some('d')]);
        ports.insert((0, 'e'));
        assert_eq!(found(&ports, [5, 0, 65_535, 7]), [Some('a'), Some('e'), Some('c'), Some('d')]);
        assert!(ports.iter().map(|port| port.1).eq(['a', 'c', 'd', 'e']));
    }

    #[test]
    fn port_with_the_number_of_another_one_replaces_it() {
        let mut ports = ports(&[(1, 'a'), (2, 'b'), (1, 'c')]);
        assert_eq!(found(&ports, [0, 1, 2, 3]), [None, Some('c'), Some('b'), None]);
        ports.get_mut(1).unwrap().1 = 'd';
        assert_eq!((ports.remove(1), ports.get(1)), (Some((1, 'd')), None));
    }
}
