import CZlib
import NIOCore

/// Inflates one compressed body, piece by piece: gzip (RFC 1952), zlib (RFC 1950) or deflate alone (RFC 1951).
///
/// The caller bounds what comes out, so a few bytes that would inflate to gigabytes cost no more than the bound.
@safe final class Inflater {
    enum Failure: Error {
        /// More came out than the bound.
        case tooLarge
        /// The bytes are not compressed as their first byte says.
        case corrupt
        case noMemory
    }

    /// Memory of one inflater: zlib's window of 32 KiB and its state (zlib manual, "Memory Footprint").
    static let bytes = 48 << 10
    /// The first byte of every gzip member. No JSON text begins with it.
    static let gzipMark: UInt8 = 0x1F
    private static let stepBytes = 64 << 10
    /// The largest window, with zlib to find out whether the frame is gzip's or zlib's (zlib manual, inflateInit2).
    private static let framedWindow: Int32 = 15 + 32
    /// The largest window, without a frame.
    private static let bareWindow: Int32 = -15

    /// zlib keeps this address, so the stream must not move.
    private let stream: UnsafeMutablePointer<z_stream>
    private let isGzip: Bool
    /// Whether the end of the compressed data has come.
    private(set) var isComplete = false

    /// - Parameters:
    ///   - first: the body's first byte.
    ///   - mayBeBare: whether the data may come without a frame.
    init(first: UInt8, mayBeBare: Bool) throws(Failure) {
        isGzip = first == Self.gzipMark
        // The low half of zlib's first byte is 8. A bare block of JSON begins with no such byte (RFC 1951, 3.2.3).
        let isFramed = isGzip || first & 0x0F == 8 || !mayBeBare
        unsafe stream = .allocate(capacity: 1)
        unsafe stream.initialize(to: z_stream())
        let result = unsafe inflateInit2_(
            stream, isFramed ? Self.framedWindow : Self.bareWindow, ZLIB_VERSION,
            Int32(MemoryLayout<z_stream>.size))
        // Without a state inflateEnd does nothing, so deinit is right in this case too.
        guard result == Z_OK else { throw .noMemory }
    }

    deinit {
        unsafe inflateEnd(stream)
        unsafe stream.deinitialize(count: 1)
        unsafe stream.deallocate()
    }

    /// Appends what the next piece of the body inflates to. Bytes behind the end of the data are passed over, unless
    /// another gzip member begins there (RFC 1952, 2.2).
    ///
    /// - Throws: `.tooLarge` if `output` would have more than `bytesMax` bytes; it then has one more.
    func inflate(_ input: ByteBuffer, onto output: inout [UInt8], upTo bytesMax: Int) throws(Failure) {
        let failure = unsafe input.withUnsafeReadableBytes { unsafe inflate($0, onto: &output, upTo: bytesMax) }
        if let failure { throw failure }
    }

    private func inflate(
        _ input: UnsafeRawBufferPointer, onto output: inout [UInt8], upTo bytesMax: Int
    ) -> Failure? {
        guard let start = input.baseAddress, unsafe !input.isEmpty else { return nil }
        // zlib only reads here; its header lacks the const.
        unsafe stream.pointee.next_in = UnsafeMutablePointer(
            mutating: start.assumingMemoryBound(to: UInt8.self))
        unsafe stream.pointee.avail_in = UInt32(input.count)
        while !isComplete || beginsMember() {
            let room = min(Self.stepBytes, bytesMax + 1 - output.count)
            let result = unsafe withUnsafeTemporaryAllocation(of: UInt8.self, capacity: room) { step in
                unsafe stream.pointee.next_out = step.baseAddress
                unsafe stream.pointee.avail_out = UInt32(room)
                let result = unsafe CZlib.inflate(stream, Z_NO_FLUSH)
                let count = unsafe room - Int(stream.pointee.avail_out)
                unsafe output.append(contentsOf: UnsafeBufferPointer(rebasing: step[..<count]))
                return result
            }
            guard output.count <= bytesMax else { return .tooLarge }
            switch result {
            case Z_STREAM_END: isComplete = true
            // There may be more to come out while the step was filled to its end.
            case Z_OK where unsafe stream.pointee.avail_in > 0 || stream.pointee.avail_out == 0: break
            case Z_OK, Z_BUF_ERROR: return nil
            case Z_MEM_ERROR: return .noMemory
            default: return .corrupt
            }
        }
        return nil
    }

    /// Whether the next byte begins another gzip member; then zlib begins anew.
    private func beginsMember() -> Bool {
        guard isGzip, unsafe stream.pointee.avail_in > 0, unsafe stream.pointee.next_in.pointee == Self.gzipMark,
            unsafe inflateReset(stream) == Z_OK
        else { return false }
        isComplete = false
        return true
    }
}
