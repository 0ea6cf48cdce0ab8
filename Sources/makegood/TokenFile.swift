import Commands
import Foundation
import Intake
import NIOCore

/// A file of signed transactions, one a line, read in pieces: a million of them take 4 GB.
actor TokenFile {
    private static let chunkBytes = 1 << 20
    /// The largest request body that ingest can be configured to take.
    private static let lineBytesMax = 16 << 20

    private let name: String
    private let handle: FileHandle
    private var chunk = ByteBuffer()
    private var line = 0
    private var isAtEnd = false

    init(path: String) throws(UnusableInput) {
        let file = InputFile(path: path)
        name = file.name
        handle = try file.open()
    }

    /// The next tokens, at most `count`; fewer only at the end of the file. Empty lines are skipped. The tokens are
    /// slices of the bytes read.
    ///
    /// - Throws: if the file cannot be read, or a line has a character that no JWS has (the tokens are written into a
    ///   JSON text as they are).
    func next(_ count: Int) throws(UnusableInput) -> [ByteBuffer] {
        var tokens: [ByteBuffer] = []
        tokens.reserveCapacity(count)
        while tokens.count < count, let token = try nextLine() {
            if token.readableBytes > 0 { tokens.append(token) }
        }
        return tokens
    }

    /// The next line without its end; nil: there is none.
    private func nextLine() throws(UnusableInput) -> ByteBuffer? {
        while true {
            let length = leadingTokenBytes
            let end = chunk.readerIndex + length
            switch (chunk.getInteger(at: end, as: UInt8.self), chunk.getInteger(at: end + 1, as: UInt8.self)) {
            case (0x0A?, _):
                return takeLine(length, end: 1)
            case (0x0D?, 0x0A?):
                return takeLine(length, end: 2)
            case (nil, _), (0x0D?, nil):
                guard isAtEnd else {
                    try readMore()
                    continue
                }
                return chunk.readableBytes > 0 ? takeLine(length, end: chunk.readableBytes - length) : nil
            default:
                throw UnusableInput("\(name), line \(line + 1): not a signed transaction")
            }
        }
    }

    /// The number of bytes up to the next one that is no token text. Checks many bytes at once, because the file may
    /// have gigabytes; goes byte by byte only near another character.
    private var leadingTokenBytes: Int {
        chunk.withUnsafeReadableBytes { bytes in
            let bytes = bytes.bindMemory(to: UInt8.self)
            var (count, stride) = (0, 256)
            while stride > 0 {
                while count + stride <= bytes.count,
                    ProofShape.isTokenText(.init(rebasing: bytes[count..<count + stride]))
                { count += stride }
                stride /= 16
            }
            return count
        }
    }

    private func takeLine(_ length: Int, end: Int) -> ByteBuffer? {
        line += 1
        defer { chunk.moveReaderIndex(forwardBy: end) }
        return chunk.readSlice(length: length)
    }

    /// Puts the rest of the chunk before the next one, in new memory: the tokens handed out are slices of the old
    /// memory.
    private func readMore() throws(UnusableInput) {
        guard chunk.readableBytes <= Self.lineBytesMax else {
            throw UnusableInput("\(name), line \(line + 1): more than \(Self.lineBytesMax) bytes")
        }
        var longer = ByteBufferAllocator().buffer(capacity: max(Self.chunkBytes, 2 * chunk.readableBytes))
        longer.writeBuffer(&chunk)
        var isReadable = true
        let descriptor = handle.fileDescriptor
        let count = longer.writeWithUnsafeMutableBytes(minimumWritableBytes: 1) { space in
            while true {
                let count = read(descriptor, space.baseAddress, space.count)
                if count >= 0 { return count }
                if errno != EINTR {
                    isReadable = false
                    return 0
                }
            }
        }
        guard isReadable else { throw UnusableInput("cannot read \(name)") }
        isAtEnd = count == 0
        chunk = longer
    }
}
