/// A PKCS#7 receipt taken apart; nothing in it is believed yet.
///
/// Source: RFC 2315 section 9, AppleFacts 6.1. Read by hand, because a receipt is CMS in its smallest form (one signer,
/// no signed attributes) in an encoding that swift-certificates refuses: its CMS reads DER alone and has no SHA-1.
package struct SignedReceipt: Sendable {
    enum Digest: Sendable {
        /// Receipts until 2023.
        case sha1
        case sha256
    }

    /// The octets that are signed.
    package let content: [UInt8]
    /// DER of the certificates, in the order they came.
    let certificates: [[UInt8]]
    /// nil: a way of signing that Apple's receipts do not have.
    let digest: Digest?
    let signature: [UInt8]
    /// Certificates and signer as they came: the key of the chain cache.
    let presented: [UInt8]
    private let signerIssuer: [UInt8]
    private let signerSerial: [UInt8]

    package init(_ bytes: [UInt8]) throws(ReceiptFailure) {
        do throws(BERReader.Failure) {
            try self.init(container: bytes)
        } catch {
            throw ReceiptFailure(error)
        }
    }

    private init(container: [UInt8]) throws(BERReader.Failure) {
        var outer = BERReader(container)
        var contentInfo = try outer.next(Element.sequence).elements
        guard outer.isAtEnd else { throw .encoding }
        guard try contentInfo.next(Element.objectIdentifier).bytes.elementsEqual(OID.signedData) else {
            throw .structure
        }
        var tagged = try contentInfo.next(Element.tagged0).elements
        var signedData = try tagged.next(Element.sequence).elements
        _ = try signedData.next(Element.integer)
        _ = try signedData.next(Element.set)

        var encapsulated = try signedData.next(Element.sequence).elements
        guard try encapsulated.next(Element.objectIdentifier).bytes.elementsEqual(OID.data) else { throw .structure }
        var taggedContent = try encapsulated.next(Element.tagged0).elements
        guard let octets = try taggedContent.next() else { throw .structure }
        content = try octets.octets()

        let presentedCertificates = try signedData.next(Element.tagged0)
        certificates = try Self.certificates(presentedCertificates)
        var signers = try signedData.next()
        if signers?.tag == Element.tagged1 { signers = try signedData.next() }  // revocation lists
        guard let signers, signers.tag == Element.set else { throw .structure }
        var signerInfos = signers.elements
        var signer = try signerInfos.next(Element.sequence).elements
        guard signerInfos.isAtEnd else { throw .structure }

        _ = try signer.next(Element.integer)
        let name = try signer.next(Element.sequence)
        var nameParts = name.elements
        signerIssuer = Array(try nameParts.next(Element.sequence).encodedBytes)
        signerSerial = Array(try nameParts.next(Element.integer).bytes)
        presented = Array(presentedCertificates.encodedBytes) + name.encodedBytes
        let digestAlgorithm = try Self.algorithm(signer.next(Element.sequence))
        var next = try signer.next()
        let hasSignedAttributes = next?.tag == Element.tagged0
        if hasSignedAttributes { next = try signer.next() }
        guard let next, next.tag == Element.sequence else { throw .structure }
        let signatureAlgorithm = try Self.algorithm(next)
        guard let signatureOctets = try signer.next() else { throw .structure }
        signature = try signatureOctets.octets()
        digest = hasSignedAttributes ? nil : Self.digest(digestAlgorithm, signedBy: signatureAlgorithm)
    }

    /// The certificates as leaf, intermediate, root: the signer's, its issuer's, the other one.
    ///
    /// By name, because they are a SET: their order means nothing.
    func orderedCertificates() throws(VerificationFailure) -> [[UInt8]] {
        guard certificates.count == 3 else { throw VerificationFailure(.chainLength) }
        var rest: [(der: [UInt8], names: Names)] = []
        for certificate in certificates {
            guard let names = try? Names(certificate) else { throw VerificationFailure(.certificate) }
            rest.append((certificate, names))
        }
        let isSigner = { (names: Names) in names.issuer == signerIssuer && names.serial == signerSerial }
        guard let leaf = rest.firstIndex(where: { isSigner($0.names) }).map({ rest.remove(at: $0) }) else {
            throw VerificationFailure(.certificate)
        }
        let intermediate = rest.remove(at: rest.firstIndex { $0.names.subject == leaf.names.issuer } ?? 0)
        return [leaf.der, intermediate.der, rest[0].der]
    }

    private typealias Element = BERReader.Element

    /// No receipt of Apple's has more certificates; each costs the reader a copy.
    private static let certificatesMax = 16
    /// Bytes of one certificate. Apple's have 1 to 2 kB; parsing takes fifty times as much memory.
    private static let certificateBytesMax = 16 << 10

    private static func certificates(_ tagged: Element) throws(BERReader.Failure) -> [[UInt8]] {
        var certificates: [[UInt8]] = []
        var elements = tagged.elements
        while let element = try elements.next() {
            guard element.tag == Element.sequence, certificates.count < certificatesMax,
                element.encoded.count <= certificateBytesMax
            else { throw .structure }
            certificates.append(Array(element.encodedBytes))
        }
        return certificates
    }

    private static func algorithm(_ identifier: Element) throws(BERReader.Failure) -> [UInt8] {
        var parts = identifier.elements
        return Array(try parts.next(Element.objectIdentifier).bytes)
    }

    private static func digest(_ digest: [UInt8], signedBy signature: [UInt8]) -> Digest? {
        switch (digest, signature) {
        case (OID.sha1, OID.rsa), (OID.sha1, OID.sha1WithRSA): .sha1
        case (OID.sha256, OID.rsa), (OID.sha256, OID.sha256WithRSA): .sha256
        default: nil
        }
    }

    /// What identifies a certificate, as it stands in it (RFC 5280 section 4.1).
    private struct Names {
        let serial: [UInt8]
        let issuer: [UInt8]
        let subject: [UInt8]

        init(_ certificate: [UInt8]) throws(BERReader.Failure) {
            var outer = BERReader(certificate)
            var signed = try outer.next(Element.sequence).elements
            var fields = try signed.next(Element.sequence).elements
            var next = try fields.next()
            if next?.tag == Element.tagged0 { next = try fields.next() }  // the version
            guard let next, next.tag == Element.integer else { throw .structure }
            serial = Array(next.bytes)
            _ = try fields.next(Element.sequence)  // signature algorithm
            issuer = Array(try fields.next(Element.sequence).encodedBytes)
            _ = try fields.next(Element.sequence)  // validity
            subject = Array(try fields.next(Element.sequence).encodedBytes)
        }
    }

    /// Contents of the object identifiers that a receipt has.
    private enum OID {
        static let signedData: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x02]
        static let data: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x01]
        static let sha1: [UInt8] = [0x2B, 0x0E, 0x03, 0x02, 0x1A]
        static let sha256: [UInt8] = [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01]
        static let rsa: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01]
        static let sha1WithRSA: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x05]
        static let sha256WithRSA: [UInt8] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x0B]
    }
}
