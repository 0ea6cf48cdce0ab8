import Crypto
package import Purchases
import Synchronization

/// The headers of signed transactions that are stored once for all proofs that begin with them.
///
/// The header of a JWS holds Apple's certificates: four fifths of a proof, and the same in every purchase for a year or
/// longer. Anybody may post a header, so a header is shared only after it has come several times, and each further
/// header only after it has come more often than the one before. So forgeries cannot fill a table of which nothing is
/// ever deleted, nor take the place of the headers that purchases have. All other proofs are stored whole.
package final class ProofHeaders: Sendable {
    package struct Header: Sendable, Hashable {
        /// The first part of the JWS, with the dot that follows it.
        package let text: String
        package let sha256: [UInt8]

        /// Compares digests in place of texts; otherwise every row of a batch would hash the text again.
        package static func == (one: Header, other: Header) -> Bool { one.sha256 == other.sha256 }
        package func hash(into hasher: inout Hasher) { hasher.combine(sha256) }
    }

    /// How often a header must come before it is shared, while a process shares `few` headers or less: Apple uses one
    /// or two at a time.
    static let occurrencesMin = 4
    static let few = 4
    /// How many shared headers a process looks for. A new one replaces the one that came least recently.
    static let sharedMax = 16
    /// Bytes: from the shortest header that is worth sharing to the longest that is read. Apple's have about 3,000.
    static let bytes = 256...16_384
    /// How many headers are counted that have not come often enough yet. At this number all counts are halved.
    private static let candidatesMax = 256

    private struct State {
        /// The most recent first.
        var shared: [Header] = []
        /// How many headers this process has ever shared. The more, the more often the next one must come.
        var sharedEver = 0
        var candidates: [String: Int] = [:]
    }

    private let state = Mutex(State())

    package init() {}

    /// The parts in which a proof is stored: its own part, and the header that it shares, if any. Header and own part
    /// together are the payload, verbatim.
    package func split(_ proof: Proof) -> (body: String, header: Header?) {
        guard case .signedTransaction(let payload) = proof, let header = header(of: payload) else {
            return (proof.payload, nil)
        }
        return (String(decoding: payload.utf8.dropFirst(header.text.utf8.count), as: UTF8.self), header)
    }

    private func header(of payload: String) -> Header? {
        state.withLock { state in
            // Both are ASCII, as ingest has checked: this compares bytes.
            if let index = state.shared.firstIndex(where: { payload.hasPrefix($0.text) }) {
                if index > 0 { state.shared.insert(state.shared.remove(at: index), at: 0) }
                return state.shared[0]
            }
            guard
                let dot = payload.utf8.prefix(Self.bytes.upperBound).firstIndex(of: UInt8(ascii: ".")),
                Self.bytes.contains(payload.utf8.distance(from: payload.startIndex, to: dot))
            else { return nil }
            let text = String(payload[...dot])
            let occurrences = state.candidates[text, default: 0] + 1
            guard occurrences >= Self.occurrencesMin * max(1, state.sharedEver - Self.few + 1) else {
                if state.candidates.count >= Self.candidatesMax {
                    state.candidates = state.candidates.mapValues { $0 / 2 }.filter { $0.value > 0 }
                }
                state.candidates[text] = occurrences
                return nil
            }
            state.candidates[text] = nil
            state.sharedEver += 1
            if state.shared.count >= Self.sharedMax { state.shared.removeLast() }
            let header = Header(text: text, sha256: Array(SHA256.hash(data: Array(text.utf8))))
            state.shared.insert(header, at: 0)
            return header
        }
    }
}
