import AsyncHTTPClient
import Crypto
import CryptoExtras
import Foundation
import TestRandom
import Testing

@testable import AppStore

// Goal: an app receipt is believed only if Apple's certificates signed exactly these bytes for this app; any other
// receipt is refused with the reason that fits its defect (P17, P18, P20; AppleFacts 6). Method: receipts of a test
// authority with one defect each; random damage, seeds printed.

@Suite struct AppReceiptVerifierTests {
    let authority: ReceiptAuthority
    let verifier: AppReceiptVerifier

    init() throws {
        authority = try ReceiptAuthority()
        verifier = try authority.verifier()
    }

    private func receipt(_ content: [UInt8] = ReceiptAttributes.content()) throws -> ReceiptBytes {
        try ReceiptBytes(content, authority)
    }

    @Test func `a genuine receipt is believed years after its certificates ended, at its creation date`() async throws {
        let receipt = try await verifier.receipt(receipt().base64)
        #expect(receipt.bundleId == Payload.bundleId)
        #expect(receipt.environment == .production)
        #expect(receipt.creationDate == ReceiptAuthority.creationDate)
        #expect(try receipt.transactionIds() == ["1000000000000001"])
    }

    @Test func `receipts of the SHA-1 era are believed: certificates, digest, or both`() async throws {
        let old = try ReceiptAuthority(isSHA1: true)
        for isSHA1 in [false, true] {
            let bytes = try ReceiptBytes(ReceiptAttributes.content(), old, isSHA1: isSHA1)
            #expect(try await old.verifier().refusal(of: bytes.base64) == nil)
        }
        #expect(
            try await verifier.refusal(of: ReceiptBytes(ReceiptAttributes.content(), authority, isSHA1: true).base64)
                == nil)
    }

    @Test func `indefinite lengths and a segmented content are read`() async throws {
        var bytes = try receipt()
        bytes.isIndefinite = true
        #expect(bytes.encoded.starts(with: [0x30, 0x80]))
        #expect(try await verifier.receipt(bytes.base64).inApp.count == 1)
    }

    @Test func `base64 may have line breaks`() async throws {
        let lines = Data(try receipt().encoded).base64EncodedString(options: [.lineLength64Characters])
        #expect(lines.contains("\r\n"))
        #expect(await verifier.refusal(of: lines) == nil)
    }

    @Test func `the order of the certificates means nothing`() async throws {
        for order in [[0, 2, 1], [1, 0, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            var bytes = try receipt()
            bytes.certificates = order.map { authority.chain[$0] }
            #expect(await verifier.refusal(of: bytes.base64) == nil, "\(order)")
        }
    }

    @Test(arguments: ReceiptAuthority.Defect.allCases)
    func `a chain with a defect is refused for it`(_ defect: ReceiptAuthority.Defect) async throws {
        let expected: VerificationFailure.Reason =
            switch defect {
            case .leafWithoutMarker, .intermediateWithoutMarker: .missingOID
            case .leafExpired, .leafNotYetValid, .intermediateExpired, .rootExpired: .expired
            default: .certificate
            }
        let authority = try ReceiptAuthority(defect)
        let bytes = try ReceiptBytes(ReceiptAttributes.content(), authority)
        #expect(try await authority.verifier().refusal(of: bytes.base64) == .notBelieved(expected))
    }

    @Test func `a foreign root is refused, also under our root's name`() async throws {
        let foreign = try ReceiptBytes(ReceiptAttributes.content(), ReceiptAuthority(isForeign: true))
        #expect(await verifier.refusal(of: foreign.base64)?.reason != nil)
        var dressed = foreign
        dressed.certificates[2] = authority.chain[2]
        for bytes in [foreign, dressed] {
            let reason = await verifier.refusal(of: bytes.base64)?.reason
            #expect(reason == .untrustedRoot || reason == .certificate, "\(String(describing: reason))")
        }
        let apple = AppReceiptVerifier(
            app: try AppIdentity(bundleId: Payload.bundleId, environments: [.production]),
            anchors: try TrustAnchors(rootCertificates: []))
        #expect(await apple.refusal(of: try receipt().base64) == .notBelieved(.untrustedRoot))
    }

    @Test func `a pinned root is believed where the receipt brings it`() async throws {
        let pinning = AppReceiptVerifier(
            app: try AppIdentity(bundleId: Payload.bundleId, environments: [.production]),
            anchors: try TrustAnchors(
                rootCertificates: [], pinned: [Array(SHA256.hash(data: authority.chain[2]))]))
        #expect(await pinning.refusal(of: try receipt().base64) == nil)
    }

    @Test func `P16: a responder that is not there is no rejection, and no matter once the leaf has ended`()
        async throws
    {
        let authority = try ReceiptAuthority(responder: "http://127.0.0.1:1/")
        let bytes = try ReceiptBytes(ReceiptAttributes.content(), authority)
        for (mode, now, expected) in [
            (.off, ReceiptAuthority.creationDate, nil), (.soft, ReceiptAuthority.creationDate, nil),
            (.hard, ReceiptAuthority.creationDate, .notBelieved(.statusUnknown)), (.hard, Date(), nil),
        ] as [(OCSPMode, Date, ReceiptFailure?)] {
            let statuses = CertificateStatuses(http: .shared, patience: .milliseconds(200), now: { now })
            let verifier = try authority.verifier(revocation: RevocationCheck(mode, statuses))
            #expect(await verifier.refusal(of: bytes.base64) == expected, "\(mode) \(now)")
        }
        #expect(ReceiptFailure.notBelieved(.statusUnknown).isRetryable)
        #expect(!ReceiptFailure.notBelieved(.revoked).isRetryable)
    }

    @Test func `another number of certificates is refused, and a signer that is none of them`() async throws {
        for certificates in [[], [0], [0, 1], [0, 1, 2, 2], Array(repeating: 1, count: 16)] {
            var bytes = try receipt()
            bytes.certificates = certificates.map { authority.chain[$0] }
            #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.chainLength), "\(certificates)")
        }
        var many = try receipt()
        many.certificates = Array(repeating: authority.chain[1], count: 17)
        #expect(await verifier.refusal(of: many.base64) == .notReceipt)
        var large = try receipt()
        large.certificates[1] = ReceiptBytes.element(0x30, [UInt8](repeating: 0, count: 20_000))
        #expect(await verifier.refusal(of: large.base64) == .notReceipt)
        var bytes = try receipt()
        bytes.signer = try ReceiptAuthority().chain[0]  // the same name, another serial number
        #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.certificate))
        // The intermediate signs the receipt itself: its chain is one certificate short.
        bytes.signer = authority.chain[1]
        let signed = try authority.intermediateKey.signature(
            for: SHA256.hash(data: bytes.content), padding: .insecurePKCS1v1_5)
        bytes.signature = Array(signed.rawRepresentation)
        #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.chainLength))
    }

    @Test func `what is not signed is refused: swapped content, another signature, no signature`() async throws {
        let rich = ReceiptAttributes.content(more: (1...9).map { ReceiptAttributes.purchase("\($0)") })
        let swapped = try ReceiptBytes(rich, authority, signed: ReceiptAttributes.content())
        #expect(await verifier.refusal(of: swapped.base64) == .notBelieved(.signature))
        for signature in [[], [0], [UInt8](repeating: 0, count: 256), [UInt8](repeating: 255, count: 256)] {
            var bytes = try receipt()
            bytes.signature = signature
            #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.signature))
        }
        // The signature is checked even when the chain is known.
        #expect(await verifier.refusal(of: try receipt().base64) == nil)
        #expect(await verifier.refusal(of: swapped.base64) == .notBelieved(.signature))
    }

    @Test func `every bit of the content is signed`() async throws {
        let bytes = try receipt()
        for index in bytes.content.indices {
            var changed = bytes
            changed.content[index] ^= 1 << UInt8(index % 8)
            #expect(await verifier.refusal(of: changed.base64) != nil, "byte \(index)")
        }
    }

    @Test func `no purchase is read before the signature, and not more attributes than a receipt can have`()
        async throws
    {
        // A purchase that cannot be read. In a forged receipt the verifier does not even look at it.
        let broken = ReceiptAttributes.content(more: [ReceiptAttributes.attribute(17, [0xFF])])
        let forged = try ReceiptBytes(broken, authority, signed: ReceiptAttributes.content())
        #expect(await verifier.refusal(of: forged.base64) == .notBelieved(.signature))
        #expect(await verifier.refusal(of: try receipt(broken).base64) == .notASN1)
        let attribute = ReceiptAttributes.attribute(9999, [])
        for (count, expected) in [(AppReceipt.attributesMax - 5, nil), (AppReceipt.attributesMax, .notReceipt)]
            as [(Int, ReceiptFailure?)]
        {
            let many = ReceiptAttributes.content(more: Array(repeating: attribute, count: count))
            #expect(await verifier.refusal(of: try receipt(many).base64) == expected)
        }
    }

    @Test func `another way of signing is refused`() async throws {
        var bytes = try receipt()
        bytes.digestOID = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x02, 0x05]  // MD5
        #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.algorithm))
        bytes = try receipt()
        bytes.signedAttributes = [0xA0, 0]
        #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.algorithm))
        bytes = try receipt()
        bytes.digestOID = ReceiptBytes.sha1OID
        #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.signature))
    }

    @Test func `the date is the receipt's own, or the caller's, or now`() async throws {
        let late = try receipt(ReceiptAttributes.content(date: "2026-06-26T08:00:00Z"))
        #expect(await verifier.refusal(of: late.base64) == .notBelieved(.expired))
        #expect(await verifier.refusal(of: late.base64, at: ReceiptAuthority.creationDate) == nil)
        // A known chain is judged at the date of each receipt.
        #expect(await verifier.refusal(of: late.base64) == .notBelieved(.expired))
        let good = try receipt().base64
        #expect(await verifier.refusal(of: good) == nil)
        #expect(await verifier.refusal(of: good, at: .now) == .notBelieved(.expired))
        #expect(await verifier.refusal(of: good, at: .distantFuture) == .notBelieved(.expired))
        // The verifier's clock is set to the day of the certificates.
        #expect(await verifier.refusal(of: try receipt(ReceiptAttributes.content(date: "")).base64) == nil)
    }

    @Test func `another app's or another environment's receipt is refused`() async throws {
        let chess = try receipt(ReceiptAttributes.content(bundleId: "com.example.chess"))
        #expect(await verifier.refusal(of: chess.base64) == .notBelieved(.wrongApp))
        let listing = try authority.verifier(aliases: ["com.example.chess"])
        #expect(await listing.refusal(of: chess.base64) == nil)
        let production = try authority.verifier(environments: [.production])
        for (type, isServed) in [
            ("Production", true), ("ProductionVPP", true), ("ProductionSandbox", false),
            ("ProductionVPPSandbox", false),
            ("ProductionInternal", false), ("production", false),
            // A receipt without a type is of an unknown environment, not of a wrong one (F23).
            ("", true),
        ] {
            let bytes = try receipt(ReceiptAttributes.content(type: type))
            let expected: ReceiptFailure? = isServed ? nil : .notBelieved(.wrongEnvironment)
            #expect(await production.refusal(of: bytes.base64) == expected, "\(type)")
        }
        let nameless = try receipt(ReceiptAttributes.set([ReceiptAttributes.text(0, "Production")]))
        #expect(await verifier.refusal(of: nameless.base64) == .notBelieved(.wrongApp))
    }

    @Test func `Xcode's receipts are read only where unsigned data is wanted, never in production`() async throws {
        let content = ReceiptAttributes.content(type: "Xcode", more: [ReceiptAttributes.purchase("0")])
        var bytes = try receipt(ReceiptBytes.element(0x04, content))
        bytes.isIndefinite = true
        bytes.certificates = [authority.chain[2]]
        bytes.signature = []
        #expect(await verifier.refusal(of: bytes.base64) == .notBelieved(.unsigned))
        let listed = try authority.verifier(environments: [.production, .xcode])
        #expect(await listed.refusal(of: bytes.base64) == .notBelieved(.unsigned))
        let switched = try authority.verifier(environments: [.sandbox], acceptsXcode: true)
        #expect(await switched.refusal(of: bytes.base64) == .notBelieved(.unsigned))
        let wanted = try authority.verifier(environments: [.sandbox, .xcode], acceptsXcode: true)
        #expect(try await wanted.receipt(bytes.base64).inApp.map(\.transactionId) == ["0"])
        bytes.content = ReceiptAttributes.content(bundleId: "com.example.chess", type: "Xcode")
        #expect(await wanted.refusal(of: bytes.base64) == .notBelieved(.wrongApp))
        // Accepting Xcode's data does not weaken the checks of other data.
        let sandbox = try receipt(ReceiptAttributes.content(type: "ProductionSandbox"))
        #expect(await wanted.refusal(of: sandbox.base64) == nil)
        #expect(throws: AppIdentity.UnsignedDataInProduction.self) {
            try authority.verifier(environments: [.production, .xcode], acceptsXcode: true)
        }
    }

    @Test func `what cannot be read is refused for what it is (P20)`() async throws {
        let good = try receipt().encoded
        for (text, expected) in [
            ("", ReceiptFailure.notBase64), ("!!!", .notBase64), ("MIIB", .notASN1), ("AAAA", .notASN1),
            (Data(good + [0]).base64EncodedString(), .notASN1), (Data(good + good).base64EncodedString(), .notASN1),
            (Data([0x30, 0x00]).base64EncodedString(), .notReceipt),
            (String(repeating: "A", count: AppReceipt.bytesMax / 3 * 4 + 4), .tooLarge),
        ] {
            #expect(await verifier.refusal(of: text) == expected, "\(text.prefix(40))")
            #expect(expected.reason == .malformed)
        }
        var other = try receipt()
        other.contentOID = ReceiptBytes.signedDataOID
        #expect(await verifier.refusal(of: other.base64) == .notReceipt)
        for content in [[], [0x05, 0x00], ReceiptAttributes.set([[0x05, 0x00]]), [0x31, 0x82]] as [[UInt8]] {
            #expect(await verifier.refusal(of: try receipt(content).base64)?.reason == .malformed)
        }
        let empty = try await verifier.receipt(try receipt(ReceiptAttributes.content(more: [])).base64)
        #expect(throws: ReceiptFailure.noPurchase) { try empty.transactionIds() }
    }

    @Test func `a receipt cut off anywhere is refused`() async throws {
        let bytes = try receipt().encoded
        for length in bytes.indices {
            let cut = Data(bytes[..<length]).base64EncodedString()
            #expect(await verifier.refusal(of: cut)?.reason == .malformed, "\(length)")
        }
    }

    @Test func `damage of chance never crashes, and never changes what is believed`() async throws {
        var random = SeededRandom(announcing: "damaged receipts")
        for isIndefinite in [false, true] {
            var bytes = try receipt()
            bytes.isIndefinite = isIndefinite
            let genuine = try await verifier.receipt(bytes.base64)
            for _ in 0..<1000 {
                let damaged = Data(random.damage(bytes.encoded)).base64EncodedString()
                if let receipt = try? await verifier.receipt(damaged) {
                    #expect(receipt == genuine, "seed \(random.seed)")
                }
            }
        }
    }

    @Test func `depth and length cost linear time`() async throws {
        // Half a million nested elements of indefinite length, and the same of octet strings.
        let clock = ContinuousClock()
        for nest in [[0x30, 0x80], [0x24, 0x80], [0xA0, 0x80]] as [[UInt8]] {
            let deep = Array(repeatElement(nest, count: 500_000).joined())
            let closed = deep + [UInt8](repeating: 0, count: deep.count)
            for bytes in [deep, closed] {
                let time = await clock.measure {
                    #expect(await verifier.refusal(of: Data(bytes).base64EncodedString())?.reason == .malformed)
                    #expect(throws: ReceiptFailure.self) { try AppReceipt(unverified: bytes) }
                }
                #expect(time < .seconds(20))
            }
        }
        var content = try receipt()
        content.content = Array(repeatElement([0x24, 0x80], count: 100_000).joined())
        #expect(await verifier.refusal(of: content.base64)?.reason == .malformed)
    }

    @Test func `a hundred thousand purchases are read in linear time`() async throws {
        func time(_ count: Int) async throws -> Duration {
            // The id is the end of a purchase.
            let purchase = ReceiptAttributes.purchase("1000000").dropLast(7)
            let purchases = (0..<count).map { purchase + Array("\(1_000_000 + $0)".utf8) }
            let base64 = try receipt(ReceiptAttributes.content(more: purchases.map { Array($0) })).base64
            return try await ContinuousClock().measure {
                let receipt = try await verifier.receipt(base64)
                #expect(receipt.inApp.count == count)
                #expect(receipt.inApp.last?.transactionId == "\(1_000_000 + count - 1)")
            }
        }
        let small = try await time(10_000)
        let large = try await time(100_000)
        #expect(large < small * 40, "\(small) and \(large)")
    }
}
