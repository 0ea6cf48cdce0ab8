/// What the door checks of a proof: its spelling, nothing that needs a key, a certificate or Apple.
enum ProofShape {
    /// Apple's signed transactions have about 4 KiB.
    static let signedTransactionBytesMax = 64 << 10

    /// Three parts of unpadded base64url (RFC 7515, 7.1). An empty third part is an unsigned token: a matter for the
    /// verifier, so that it is stored, judged and counted.
    static func isCompactJWS(_ text: String) -> Bool {
        var text = text
        return text.withUTF8 { bytes in
            byteClasses.withUnsafeBufferPointer { classes in
                var (part, length) = (0, 0)
                for byte in bytes {
                    switch classes[Int(byte)] {
                    case .base64URL: length += 1
                    case .dot:
                        guard part < 2, length > 0, length % 4 != 1 else { return false }
                        (part, length) = (part + 1, 0)
                    case .other: return false
                    }
                }
                return part == 2 && length % 4 != 1
            }
        }
    }

    private enum ByteClass {
        case base64URL, dot, other
    }

    /// One look-up a byte: a proof has thousands, and every post passes here.
    private static let byteClasses: [ByteClass] = (UInt8.min...UInt8.max).map { byte in
        if byte == UInt8(ascii: ".") { return .dot }
        return isAlphanumeric(byte) || byte == UInt8(ascii: "-") || byte == UInt8(ascii: "_") ? .base64URL : .other
    }

    /// Base64 in its one canonical spelling (RFC 4648, section 4), as Apple wants it; nil where it is none.
    ///
    /// CR and LF are dropped (StoreKit's `lineLength` options make them), the url alphabet and missing padding are
    /// translated: the same receipt under any of these spellings is the same submission.
    static func canonicalBase64(_ text: String) -> String? {
        var output: [UInt8] = []
        output.reserveCapacity(text.utf8.count + 3)
        var (hasStandard, hasURL, padding) = (false, false, 0)
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "\r"), UInt8(ascii: "\n"): continue
            case UInt8(ascii: "="):
                padding += 1
                continue
            case UInt8(ascii: "+"), UInt8(ascii: "/"):
                hasStandard = true
                output.append(byte)
            case UInt8(ascii: "-"):
                hasURL = true
                output.append(UInt8(ascii: "+"))
            case UInt8(ascii: "_"):
                hasURL = true
                output.append(UInt8(ascii: "/"))
            case _ where isAlphanumeric(byte): output.append(byte)
            default: return nil
            }
            // Padding ends the text.
            guard padding == 0 else { return nil }
        }
        let missing = (4 - output.count % 4) % 4
        guard !output.isEmpty, missing < 3, padding == 0 || padding == missing, !(hasStandard && hasURL) else {
            return nil
        }
        output.append(contentsOf: repeatElement(UInt8(ascii: "="), count: missing))
        return String(decoding: output, as: UTF8.self)
    }

    private static func isAlphanumeric(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"):
            true
        default: false
        }
    }
}
