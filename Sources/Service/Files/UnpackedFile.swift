import NIOCore

/// The bytes of a file piece by piece, unpacked where the file is compressed with gzip; its first bytes say so.
///
/// Memory: one piece of the source, and what `pieceBytes` of it unpack to, at most 1,032 times as much.
package final class UnpackedFile {
    package enum Failure: Error, Equatable {
        /// The compressed data end before their end: the file was cut off.
        case cut
        /// The data are not gzip, though they begin like it.
        case corrupt
    }

    private static let pieceBytes = 4 << 10
    private static let gzip: [UInt8] = [0x1F, 0x8B]
    /// No piece unpacks to that much.
    private static let outputBytesMax = 1 << 30

    private let source: () throws -> [UInt8]
    private var pending: ArraySlice<UInt8> = []
    private var inflater: Inflater?
    private var hasBegun = false
    private var isAtEnd = false

    /// - Parameter source: the next bytes of the file; empty at its end.
    package init(_ source: @escaping () throws -> [UInt8]) { self.source = source }

    /// The next bytes; empty at the end.
    ///
    /// - Throws: `Failure`; the errors of the source.
    package func next() throws -> [UInt8] {
        if !hasBegun { try begin() }
        while true {
            if pending.isEmpty { try fill() }
            guard let inflater else {
                defer { pending = [] }
                return Array(pending)
            }
            guard !pending.isEmpty else {
                guard inflater.isComplete else { throw Failure.cut }
                return []
            }
            var output: [UInt8] = []
            let piece = pending.prefix(Self.pieceBytes)
            pending = pending.dropFirst(Self.pieceBytes)
            do {
                try inflater.inflate(ByteBuffer(bytes: piece), onto: &output, upTo: Self.outputBytesMax)
            } catch {
                throw Failure.corrupt
            }
            if !output.isEmpty { return output }
        }
    }

    private func begin() throws {
        hasBegun = true
        while pending.count < Self.gzip.count, !isAtEnd { try fill() }
        if pending.starts(with: Self.gzip) { inflater = try Inflater(first: Self.gzip[0], mayBeBare: false) }
    }

    private func fill() throws {
        guard !isAtEnd else { return }
        let bytes = try source()
        isAtEnd = bytes.isEmpty
        pending += bytes
    }
}
