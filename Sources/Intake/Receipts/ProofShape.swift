import Foundation

/// The checks of a proof's spelling in ingest: none needs a key, a certificate or Apple.
package enum ProofShape {
    /// Apple's signed transactions have about 4 KiB.
    static let signedTransactionBytesMax = 64 << 10

    /// Whether the text is three parts of unpadded base64url (RFC 7515, 7.1). An empty third part is an unsigned token,
    /// which ingest stores for the worker's verifier to judge and count.
    static func isCompactJWS(_ text: String) -> Bool {
        var text = text
        return text.withUTF8 { bytes in
            guard isTokenText(bytes), let first = index(ofDotIn: bytes, from: 0),
                let second = index(ofDotIn: bytes, from: first + 1)
            else { return false }
            let (header, payload, signature) = (first, second - first - 1, bytes.count - second - 1)
            return header > 0 && header % 4 != 1 && payload > 0 && payload % 4 != 1 && signature % 4 != 1
                && index(ofDotIn: bytes, from: second + 1) == nil
        }
    }

    private static let dot = UInt8(ascii: ".")

    private static func index(ofDotIn bytes: UnsafeBufferPointer<UInt8>, from start: Int) -> Int? {
        guard let base = bytes.baseAddress, let found = memchr(base + start, Int32(dot), bytes.count - start) else {
            return nil
        }
        return UnsafeRawPointer(found) - UnsafeRawPointer(base)
    }

    /// Whether the bytes are base64url and dots only.
    ///
    /// The loop looks at every byte without a branch, whatever it finds, so the compiler handles sixteen bytes at once.
    /// A proof has thousands of bytes, and every post passes here.
    package static func isTokenText(_ bytes: UnsafeBufferPointer<UInt8>) -> Bool {
        var strangers: UInt8 = 0
        for byte in bytes {
            let isLetter: UInt8 = (byte | 0x20) &- UInt8(ascii: "a") < 26 ? 1 : 0
            let isDigit: UInt8 = byte &- UInt8(ascii: "0") < 10 ? 1 : 0
            let isMark: UInt8 = byte == UInt8(ascii: "-") || byte == UInt8(ascii: "_") || byte == dot ? 1 : 0
            strangers |= (isLetter | isDigit | isMark) ^ 1
        }
        return strangers == 0
    }

    /// Base64 in its one canonical spelling (RFC 4648, section 4), as Apple wants it; nil for other text.
    ///
    /// CR and LF are dropped (StoreKit's `lineLength` options make them), and the url alphabet and missing padding are
    /// translated: a receipt under any of these spellings is the same submission.
    static func canonicalBase64(_ text: String) -> String? {
        guard let read = Base64Symbols(text.utf8, passesLineBreaks: true), !(read.hasStandard && read.hasURL),
            read.padding == 0 || read.padding == read.missing
        else { return nil }
        return String(decoding: read.padded, as: UTF8.self)
    }
}

/// The symbols of a base64 text in the standard alphabet, and how the text wrote them.
struct Base64Symbols {
    /// With the padding that they need.
    private(set) var padded: [UInt8] = []
    private(set) var hasStandard = false
    private(set) var hasURL = false
    /// How many `=` the text has at its end, and how many it needs.
    private(set) var padding = 0
    let missing: Int

    /// Nil for an empty text, one with another character, one that goes on after its padding, and one whose last group
    /// is a single symbol.
    init?(_ text: some Collection<UInt8>, passesLineBreaks: Bool) {
        padded.reserveCapacity(text.count + 3)
        for byte in text {
            switch byte {
            case UInt8(ascii: "\r"), UInt8(ascii: "\n"):
                guard passesLineBreaks else { return nil }
                continue
            case UInt8(ascii: "="):
                padding += 1
                continue
            case UInt8(ascii: "+"), UInt8(ascii: "/"):
                hasStandard = true
                padded.append(byte)
            case UInt8(ascii: "-"):
                hasURL = true
                padded.append(UInt8(ascii: "+"))
            case UInt8(ascii: "_"):
                hasURL = true
                padded.append(UInt8(ascii: "/"))
            case 0x30...0x39, 0x41...0x5A, 0x61...0x7A: padded.append(byte)
            default: return nil
            }
            // Padding ends the text.
            guard padding == 0 else { return nil }
        }
        missing = (4 - padded.count % 4) % 4
        guard !padded.isEmpty, missing < 3 else { return nil }
        padded.append(contentsOf: repeatElement(UInt8(ascii: "="), count: missing))
    }
}
