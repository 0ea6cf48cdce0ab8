/// A cache of presented certificates that led to a verified chain, so that the work is done once. The entry that was
/// unused for longest makes room.
///
/// Entries are found by comparing, newest first, not by hashing: presented certificates have 2 to 4 kB, and nearly all
/// data of a day presents the same.
struct KnownChains<Presented: Equatable & Sendable, LeafKey: Sendable>: Sendable {
    /// Entries change only when Apple's certificates do: room for both environments and many rotations.
    private let limit = 64
    private var entries: [(presented: Presented, chain: CertificateChain<LeafKey>)] = []

    /// The chain of presented certificates, which becomes the newest entry. Nil: not known.
    mutating func find(_ presented: Presented) -> CertificateChain<LeafKey>? {
        guard let index = entries.firstIndex(where: { $0.presented == presented }) else { return nil }
        if index > 0 { entries.insert(entries.remove(at: index), at: 0) }
        return entries[0].chain
    }

    var chains: [CertificateChain<LeafKey>] { entries.map(\.chain) }

    mutating func insert(_ chain: CertificateChain<LeafKey>, for presented: Presented) {
        guard find(presented) == nil else { return entries[0].chain = chain }
        entries.insert((presented, chain), at: 0)
        if entries.count > limit { entries.removeLast() }
    }
}
