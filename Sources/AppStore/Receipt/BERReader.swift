import Encoding

/// Walks BER (X.690), of which DER is a part, element by element and in place.
///
/// Why not SwiftASN1's `BER.parse`: it makes a node of about 100 bytes for each element before anybody looks, so 8 MiB
/// of two-byte elements, which anybody may post, would take a gigabyte. Here an element is two ranges, nothing
/// recurses, and an element of indefinite length is walked once for each level that a caller descends into.
package struct BERReader {
    package enum Failure: Error {
        /// Not BER: cut off, a length beyond the end, an end without a beginning.
        case encoding
        /// BER, but another element than the caller's structure has here.
        case structure
    }

    package struct Element {
        /// The identifier octet: class, constructed or not, number.
        let tag: UInt8
        /// Without the end-of-contents octets of an indefinite length.
        let contents: Range<Int>
        /// With identifier and length.
        let encoded: Range<Int>
        fileprivate let source: [UInt8]
    }

    private let source: [UInt8]
    private var position: Int
    private let end: Int

    package init(_ bytes: [UInt8]) {
        self.init(bytes, bytes.indices)
    }

    fileprivate init(_ source: [UInt8], _ range: Range<Int>) {
        self.source = source
        position = range.lowerBound
        end = range.upperBound
    }

    var isAtEnd: Bool { position == end }

    /// The next element; nil at the end.
    package mutating func next() throws(Failure) -> Element? {
        guard position < end else { return nil }
        let start = position
        let tag = try takeTag()
        // End-of-contents octets belong to an element of indefinite length, and are taken with it.
        guard tag != 0 else { throw .encoding }
        if let length = try takeLength() {
            let contents = position..<position + length
            position += length
            return Element(tag: tag, contents: contents, encoded: start..<position, source: source)
        }
        guard tag & Self.constructed != 0 else { throw .encoding }
        let contents = try takeToEndOfContents()
        return Element(tag: tag, contents: contents, encoded: start..<position, source: source)
    }

    /// The next element, which must be there and have this tag.
    mutating func next(_ tag: UInt8) throws(Failure) -> Element {
        guard let element = try next(), element.tag == tag else { throw .structure }
        return element
    }

    private static let constructed: UInt8 = 0x20

    private mutating func takeTag() throws(Failure) -> UInt8 {
        let tag = source[position]
        // Numbers from 31 on take more octets (8.1.2.4); nothing in a receipt has one.
        guard tag & 0x1F != 0x1F else { throw .encoding }
        position += 1
        return tag
    }

    /// A length that fits into the rest of the bytes; nil: indefinite.
    private mutating func takeLength() throws(Failure) -> Int? {
        guard position < end else { throw .encoding }
        let first = source[position]
        position += 1
        if first == 0x80 { return nil }
        var length = Int(first)
        if first > 0x80 {
            guard first != 0xFF else { throw .encoding }  // 8.1.3.5
            length = 0
            for _ in 0..<first & 0x7F {
                guard position < end, length <= Int.max >> 8 else { throw .encoding }
                length = length << 8 | Int(source[position])
                position += 1
            }
        }
        guard length <= end - position else { throw .encoding }
        return length
    }

    /// Everything up to the end-of-contents octets that close this element, past those of elements inside.
    private mutating func takeToEndOfContents() throws(Failure) -> Range<Int> {
        let start = position
        var open = 1
        while position < end {
            let tag = try takeTag()
            if tag == 0 {
                // Two zero octets, no other spelling of length zero (8.1.5).
                guard position < end, source[position] == 0 else { throw .encoding }
                position += 1
                open -= 1
                if open == 0 { return start..<position - 2 }
            } else if let length = try takeLength() {
                position += length
            } else {
                guard tag & Self.constructed != 0 else { throw .encoding }
                open += 1
            }
        }
        throw .encoding
    }
}

extension BERReader.Element {
    typealias Failure = BERReader.Failure

    static let integer: UInt8 = 0x02
    static let octetString: UInt8 = 0x04
    static let segmentedOctetString: UInt8 = 0x24
    static let objectIdentifier: UInt8 = 0x06
    static let utf8String: UInt8 = 0x0C
    static let ia5String: UInt8 = 0x16
    static let sequence: UInt8 = 0x30
    static let set: UInt8 = 0x31
    /// `[0]`, constructed.
    static let tagged0: UInt8 = 0xA0
    /// `[1]`, constructed.
    static let tagged1: UInt8 = 0xA1

    /// Segments inside segments; Xcode needs 1.
    private static let segmentDepthMax = 4

    var isOctetString: Bool { tag == Self.octetString || tag == Self.segmentedOctetString }

    var bytes: ArraySlice<UInt8> { source[contents] }
    package var encodedBytes: ArraySlice<UInt8> { source[encoded] }

    /// The elements inside.
    var elements: BERReader { BERReader(source, contents) }

    /// The content of an OCTET STRING, its segments joined (8.7.3).
    func octets() throws(Failure) -> [UInt8] {
        var octets: [UInt8] = []
        octets.reserveCapacity(contents.count)
        try appendOctets(to: &octets, depth: 0)
        return octets
    }

    /// The elements that an OCTET STRING holds as its octets.
    func octetElements() throws(Failure) -> BERReader {
        tag == Self.octetString ? elements : BERReader(try octets())
    }

    func int64() throws(Failure) -> Int64 {
        guard tag == Self.integer, (1...8).contains(contents.count) else { throw .structure }
        let isNegative = bytes[contents.lowerBound] >= 0x80
        return bytes.reduce(isNegative ? -1 : 0) { $0 << 8 | Int64($1) }
    }

    func text() throws(Failure) -> String {
        guard tag == Self.utf8String || tag == Self.ia5String, let text = String(validating: bytes, as: UTF8.self),
            text.isStreamSafe
        else { throw .structure }
        return text
    }

    private func appendOctets(to octets: inout [UInt8], depth: Int) throws(Failure) {
        if tag == Self.octetString { return octets.append(contentsOf: bytes) }
        guard tag == Self.segmentedOctetString, depth <= Self.segmentDepthMax else { throw .structure }
        var segments = elements
        while let segment = try segments.next() { try segment.appendOctets(to: &octets, depth: depth + 1) }
    }
}
