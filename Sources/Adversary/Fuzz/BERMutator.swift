import AppStoreSimulator

/// Mutates BER element by element. It takes apart everything that can be taken apart, octet strings included, and
/// writes the lengths of the elements around the mutated place anew, so that they fit.
enum BERMutator {
    static func mutate(_ bytes: [UInt8], with other: [UInt8], _ random: inout SplitMix64) -> [UInt8] {
        var nodes = Node.read(bytes[...], depth: 0)
        guard !nodes.isEmpty else { return ByteMutator.mutate(bytes, with: other, &random) }
        let others = Node.read(other[...], depth: 0)
        mutate(&nodes, others, &random)
        return Node.write(nodes)
    }

    /// Walks down a random path and mutates one element, or one beside it.
    private static func mutate(_ nodes: inout [Node], _ others: [Node], _ random: inout SplitMix64) {
        let index = random.below(nodes.count)
        if case .nodes(var inner) = nodes[index].body, !inner.isEmpty, !random.oneIn(4) {
            mutate(&inner, others, &random)
            nodes[index].body = .nodes(inner)
            return
        }
        switch random.below(14) {
        case 0: nodes[index].length = .indefinite
        case 1: nodes[index].length = .long(random.below(10))
        case 2: nodes[index].length = .wrong(random.pick(lengths))
        case 3: nodes[index].length = .wrong(UInt64(max(0, nodes[index].contents.count + random.below(5) - 2)))
        case 4: nodes[index].tag = random.oneIn(2) ? random.pick(tags) : UInt8(truncatingIfNeeded: random.next())
        case 5: nodes.insert(nodes[index], at: index)
        case 6: nodes.remove(at: index)
        case 7: nodes.swapAt(index, random.below(nodes.count))
        case 8 where !others.isEmpty: nodes[index] = part(of: others, &random)
        case 9 where !others.isEmpty: nodes.insert(part(of: others, &random), at: index)
        case 10: nodes[index] = nested(nodes[index], &random)
        case 11: nodes.insert(random.pick(ends), at: index)
        case 12 where nodes[index].contents.count < 2048:
            nodes = Array(repeating: nodes[index], count: 1 << random.below(8)) + nodes
        default:
            let contents = nodes[index].contents
            nodes[index].body = .octets(ByteMutator.mutate(contents, with: contents, &random))
        }
    }

    private static func part(of nodes: [Node], _ random: inout SplitMix64) -> Node {
        let node = random.pick(nodes)
        if case .nodes(let inner) = node.body, !inner.isEmpty, !random.oneIn(3) { return part(of: inner, &random) }
        return node
    }

    private static func nested(_ node: Node, _ random: inout SplitMix64) -> Node {
        let depth = random.pick([1, 2, 4, 5, 6, 100, 3000])
        let tag: UInt8 = random.pick([0x30, 0x24, 0x31, 0xA0])
        let isOpen = random.oneIn(2)
        let begin = Array(repeatElement([tag, 0x80], count: depth).joined())
        let end = isOpen ? [] : [UInt8](repeating: 0, count: 2 * depth)
        return Node(tag: nil, body: .octets(begin + Node.write([node]) + end))
    }

    private static let lengths: [UInt64] = [
        0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF, .max,
    ]
    private static let tags: [UInt8] = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x0C, 0x13, 0x16, 0x17, 0x18, 0x1F, 0x24, 0x30, 0x31, 0x3F, 0x80,
        0xA0, 0xA1, 0xA3, 0xFF,
    ]
    private static let ends = [[0, 0], [0, 0x81, 0], [0], [0, 1, 0], [5, 0]].map { Node(tag: nil, body: .octets($0)) }

    /// One element; without a tag, bytes as they stand.
    private struct Node: Sendable {
        enum Body: Sendable {
            case octets([UInt8])
            case nodes([Node])
        }

        enum Length: Sendable {
            case right
            case indefinite
            /// The right length, with so many zero octets before it.
            case long(Int)
            case wrong(UInt64)
        }

        var tag: UInt8?
        var body: Body
        var length = Length.right

        /// Real receipts have 12 levels.
        private static let depthMax = 24

        /// The elements of these bytes; empty if the bytes hold no elements, or the elements do not end where the bytes
        /// end.
        static func read(_ bytes: ArraySlice<UInt8>, depth: Int) -> [Node] {
            var rest = bytes
            return read(&rest, isIndefinite: false, depth: depth) ?? []
        }

        private static func read(_ rest: inout ArraySlice<UInt8>, isIndefinite: Bool, depth: Int) -> [Node]? {
            guard depth < depthMax else { return nil }
            var nodes: [Node] = []
            while let tag = rest.popFirst() {
                guard let first = rest.popFirst() else { return nil }
                if isIndefinite, tag == 0, first == 0 { return nodes }
                guard tag & 0x1F != 0x1F, tag != 0, first < 0x84 else { return nil }
                if first == 0x80 {
                    guard let inner = read(&rest, isIndefinite: true, depth: depth + 1) else { return nil }
                    nodes.append(Node(tag: tag, body: .nodes(inner), length: .indefinite))
                    continue
                }
                var length = Int(first)
                if first > 0x80 {
                    length = 0
                    for _ in 0..<first & 0x7F {
                        guard let next = rest.popFirst() else { return nil }
                        length = length << 8 | Int(next)
                    }
                }
                guard length <= rest.count else { return nil }
                let contents = rest.prefix(length)
                rest = rest.dropFirst(length)
                let mayHold = tag & 0x20 != 0 || tag == 0x04
                let inner = mayHold ? read(contents, depth: depth + 1) : []
                nodes.append(Node(tag: tag, body: inner.isEmpty ? .octets(Array(contents)) : .nodes(inner)))
            }
            return isIndefinite ? nil : nodes
        }

        static func write(_ nodes: [Node]) -> [UInt8] {
            var bytes: [UInt8] = []
            for node in nodes { node.write(to: &bytes) }
            return bytes
        }

        var contents: [UInt8] {
            switch body {
            case .octets(let octets): octets
            case .nodes(let nodes): Self.write(nodes)
            }
        }

        private func write(to bytes: inout [UInt8]) {
            let contents = contents
            guard let tag else { return bytes.append(contentsOf: contents) }
            bytes.append(tag)
            switch length {
            case .indefinite: bytes.append(0x80)
            case .right: Self.write(UInt64(contents.count), zeros: nil, to: &bytes)
            case .long(let zeros): Self.write(UInt64(contents.count), zeros: zeros, to: &bytes)
            case .wrong(let length): Self.write(length, zeros: nil, to: &bytes)
            }
            bytes.append(contentsOf: contents)
            if case .indefinite = length { bytes.append(contentsOf: [0, 0]) }
        }

        private static func write(_ length: UInt64, zeros: Int?, to bytes: inout [UInt8]) {
            if length < 0x80, zeros == nil { return bytes.append(UInt8(length)) }
            let octets = withUnsafeBytes(of: length.bigEndian) { Array($0.drop { $0 == 0 }) }
            let padded = Array(repeating: 0, count: zeros ?? 0) + octets
            bytes.append(0x80 | UInt8(padded.count))
            bytes.append(contentsOf: padded)
        }
    }
}
