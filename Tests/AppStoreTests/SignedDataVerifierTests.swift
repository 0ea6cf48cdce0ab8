import Crypto
import Foundation
import TestRandom
import Testing

@testable import AppStore
@testable import Encoding

// Goal: only data that Apple signed about this app is believed (P18), and other data is refused with a reason of the
// closed list. Method: one authority of our own, shaped like Apple's; each case changes one thing of an otherwise good
// JWS.

@Suite struct SignedDataVerifierTests {
    let authority: TestAuthority
    let verifier: SignedDataVerifier
    let good: String

    init() throws {
        authority = try TestAuthority()
        verifier = try authority.verifier()
        good = try authority.sign(Payload.transaction())
    }

    @Test func `a good transaction is believed, the first time and from the cache`() async throws {
        for _ in 0..<3 {
            let transaction = try await verifier.transaction(good)
            #expect(transaction.transactionId == "2000000000000001")
            #expect(transaction.environment == .production)
            #expect(transaction.signedDate == TestAuthority.signedDate)
        }
    }

    @Test(arguments: ["none", "HS256", "es256", "ES384", "RS256", "ES256 ", ""])
    func `P18: any algorithm but ES256 is refused before the certificates are looked at`(_ alg: String) async throws {
        let jws = try authority.sign(
            Payload.transaction(), header: TestAuthority.header(alg: alg, x5c: ["!", "!", "!"]))
        #expect(await verifier.refusal(of: jws) == .algorithm)
        let known = try authority.sign(
            Payload.transaction(), header: TestAuthority.header(alg: alg, x5c: authority.x5c))
        #expect(await verifier.refusal(of: known) == .algorithm)
    }

    @Test func `P18: alg none with an empty signature is refused`() async throws {
        let header = try TestAuthority.header(alg: "none", x5c: authority.x5c)
        let parts = [header, Payload.transaction()].map { TestAuthority.base64url($0.utf8) }
        let jws = parts.joined(separator: ".") + "."
        #expect(await verifier.refusal(of: jws) == .algorithm)
    }

    @Test(arguments: [#""alg":1,"#, ""])
    func `a header whose algorithm is a number or missing is refused`(_ alg: String) async throws {
        let x5c = authority.x5c.joined(separator: #"",""#)
        let jws = try authority.sign(Payload.transaction(), header: #"{\#(alg)"x5c":["\#(x5c)"]}"#)
        #expect(await verifier.refusal(of: jws) == .algorithm)
    }

    @Test(arguments: [
        #"{"alg":"none","alg":"ES256","x5c":[]}"#, #"{"alg":"ES256","crit":["x"],"x5c":[]}"#,
        #"{"alg":"ES256","x5c":"MII"}"#, #"{"alg":"ES256","x5c":[1,2,3]}"#, #"["ES256"]"#, "ES256", "",
        #"{"alg":"ES256","x5c":[]} x"#, #"{"al\u0067":"ES256","alg":"ES256","x5c":[]}"#,
    ])
    func `P18: a header with a repeated key, or that is no plain header, is malformed`(_ header: String) async throws {
        let jws = try authority.sign(Payload.transaction(), header: header)
        #expect(await verifier.refusal(of: jws) == .malformed)
    }

    @Test(arguments: [0, 1, 2, 4])
    func `P18: any number of certificates but three is refused`(_ count: Int) async throws {
        let x5c = Array((authority.x5c + authority.x5c).prefix(count))
        let header = count == 0 ? #"{"alg":"ES256","x5c":[]}"# : try TestAuthority.header(x5c: x5c)
        let jws = try authority.sign(Payload.transaction(), header: header)
        #expect(await verifier.refusal(of: jws) == .chainLength)
        let without = try authority.sign(Payload.transaction(), header: #"{"alg":"ES256"}"#)
        #expect(await verifier.refusal(of: without) == .chainLength)
    }

    static let chainDefects: [(TestAuthority.Defect, VerificationFailure.Reason)] = [
        (.leafWithoutMarker, .missingOID), (.intermediateWithoutMarker, .missingOID),
        (.intermediateNotCA, .certificate), (.intermediateWithoutConstraints, .certificate),
        (.intermediateMayNotSignCertificates, .certificate), (.rootNotCA, .certificate),
        (.leafMayNotSign, .certificate), (.leafP384, .certificate),
        (.leafUnknownCriticalExtension, .certificate), (.intermediateUnknownCriticalExtension, .certificate),
        (.leafExpired, .expired), (.leafNotYetValid, .expired), (.intermediateExpired, .expired),
        (.rootExpired, .expired),
    ]

    @Test func `every defect of a chain is in the table`() {
        #expect(Set(Self.chainDefects.map { $0.0 }) == Set(TestAuthority.Defect.allCases))
    }

    @Test(arguments: chainDefects)
    func `P18: a chain with one defect is refused for it`(
        _ defect: TestAuthority.Defect, _ expected: VerificationFailure.Reason
    ) async throws {
        let bent = try TestAuthority(defect)
        let jws = try bent.sign(Payload.transaction())
        let verifier = try bent.verifier()
        // Twice: a refusal must not leave anything in the cache.
        #expect(await verifier.refusal(of: jws) == expected)
        #expect(await verifier.refusal(of: jws) == expected)
    }

    @Test func `P18: a foreign root is refused, also one with the same names`() async throws {
        for name in ["Test", "Foreign"] {
            let jws = try TestAuthority(name: name).sign(Payload.transaction())
            #expect(
                await verifier.refusal(of: jws) == .untrustedRoot)
        }
    }

    @Test func `P18: our root in third place proves nothing for a foreign leaf and intermediate`() async throws {
        let foreign = try TestAuthority()
        let x5c = [foreign.x5c[0], foreign.x5c[1], authority.x5c[2]]
        let jws = try foreign.sign(Payload.transaction(), header: TestAuthority.header(x5c: x5c))
        #expect(await verifier.refusal(of: jws) == .untrustedRoot)
    }

    @Test func `P18: a foreign leaf under our intermediate is refused`() async throws {
        let foreign = try TestAuthority()
        let x5c = [foreign.x5c[0], authority.x5c[1], authority.x5c[2]]
        let jws = try foreign.sign(Payload.transaction(), header: TestAuthority.header(x5c: x5c))
        #expect(await verifier.refusal(of: jws) == .untrustedRoot)
    }

    @Test func `P18: the root itself as leaf is no chain`() async throws {
        let root = authority.x5c[2]
        for x5c in [[root, root, root], [root, authority.x5c[1], root], [authority.x5c[1], root, root]] {
            let jws = try authority.sign(Payload.transaction(), header: TestAuthority.header(x5c: x5c))
            #expect(
                await verifier.refusal(of: jws) == .chainLength)
        }
    }

    @Test func `P17: the third certificate is not used where a configured root is the anchor`() async throws {
        let foreign = try TestAuthority(name: "Other")
        let x5c = [authority.x5c[0], authority.x5c[1], foreign.x5c[2]]
        let jws = try authority.sign(Payload.transaction(), header: TestAuthority.header(x5c: x5c))
        #expect(try await verifier.transaction(jws).productId == "com.example.game.coins6")
    }

    @Test func `P17: a chain brings its own root only if its fingerprint is pinned`() async throws {
        let fingerprint = Array(SHA256.hash(data: authority.rootDER))
        let app = try AppIdentity(bundleId: Payload.bundleId, environments: [.production])
        let pinning = SignedDataVerifier(
            app: app, anchors: try TrustAnchors(rootCertificates: [], pinned: [fingerprint]))
        #expect(try await pinning.transaction(good).transactionId == "2000000000000001")

        let apple = SignedDataVerifier(app: app, anchors: try TrustAnchors(rootCertificates: []))
        #expect(await apple.refusal(of: good) == .untrustedRoot)
    }

    @Test func `Apple's two roots are pinned as AppleFacts 1.5 spells them`() {
        let pinned = Set(TrustAnchors.appleRoots.map { $0.map { String(format: "%02X", $0) }.joined(separator: ":") })
        #expect(
            pinned == [
                "63:34:3A:BF:B8:9A:6A:03:EB:B5:7E:9B:3F:5F:A7:BE:7C:4F:5C:75:6F:30:17:B3:A8:C4:88:C3:65:3E:91:79",
                "B0:B1:73:0E:CB:C7:FF:45:05:14:2C:49:F1:29:5E:6E:DA:6B:CA:ED:7E:2C:68:C5:BE:91:B5:A1:10:01:F0:24",
            ])
    }

    @Test(arguments: ["", "!!!!", "AAAA", "MIIB\\n", "AAA"])
    func `a certificate that cannot be read is refused`(_ text: String) async throws {
        for place in 0..<2 {
            var x5c = authority.x5c
            x5c[place] = text
            let jws = try authority.sign(Payload.transaction(), header: TestAuthority.header(x5c: x5c))
            #expect(await verifier.refusal(of: jws) == .certificate)
        }
    }

    @Test func `certificates in base64url or without padding are refused`() async throws {
        // The intermediate is padded with one byte more until its base64 ends in "=".
        for text in authority.x5c.prefix(2) {
            let bent = text.hasSuffix("=") ? String(text.dropLast()) : text + "="
            let x5c = authority.x5c.map { $0 == text ? bent : $0 }
            let jws = try authority.sign(Payload.transaction(), header: TestAuthority.header(x5c: x5c))
            #expect(await verifier.refusal(of: jws) == .certificate)
        }
    }

    @Test func `P18: a swapped payload is refused, also when its header is known`() async throws {
        _ = try await verifier.transaction(good)
        let other = try authority.sign(Payload.transaction(id: "2"))
        let parts = good.split(separator: "."), others = other.split(separator: ".")
        let swapped = "\(parts[0]).\(others[1]).\(parts[2])"
        #expect(await verifier.refusal(of: swapped) == .signature)
        let fresh = try authority.verifier()
        #expect(await fresh.refusal(of: swapped) == .signature)
    }

    @Test func `P18: a signature by another key is refused`() async throws {
        let jws = try authority.sign(Payload.transaction(), key: P256.Signing.PrivateKey())
        #expect(await verifier.refusal(of: jws) == .signature)
    }

    @Test(arguments: [true, false])
    func `P18: a signature of any length but 64 bytes, and zeros, is refused`(_ headerIsKnown: Bool) async throws {
        if headerIsKnown { _ = try await verifier.transaction(good) }
        let parts = good.split(separator: ".")
        let raw = [UInt8](try #require(Base64.decodeURL(Array(parts[2].utf8)[...])))
        let der = Array(try P256.Signing.ECDSASignature(rawRepresentation: raw).derRepresentation)
        for bent in [[], Array(raw.dropLast()), raw + [0], [0] + raw, der, [UInt8](repeating: 0, count: 64)] {
            let jws = "\(parts[0]).\(parts[1]).\(TestAuthority.base64url(bent))"
            #expect(await verifier.refusal(of: jws) == .signature)
        }
    }

    @Test func `white space, padding, standard base64 and wrong part counts are malformed`() async throws {
        let parts = good.split(separator: ".").map(String.init)
        let variants = [
            " " + good, good + " ", good + "\n", good + "=", good + "==", good + ".", "." + good, "\u{FEFF}" + good,
            "\(parts[0])=.\(parts[1]).\(parts[2])", "\(parts[0]).\(parts[1])=.\(parts[2])",
            "\(parts[0]) .\(parts[1]).\(parts[2])", "\(parts[0]).\(parts[1])", parts[0], "", "..", "...",
            "\(parts[0]).\(parts[1]).\(parts[2].prefix(10))+/", "\(parts[0])..\(parts[2])", "é.é.é",
            "\(parts[0]).\(parts[1]).\(parts[2]).\(parts[2])",
        ]
        for jws in variants {
            #expect(
                await verifier.refusal(of: jws) == .malformed,
                "\(jws.suffix(20))")
        }
    }

    @Test func `unused bits of a base64url part must be zero`() async throws {
        // 64 bytes leave four unused bits in the last character, so that one signature has fifteen other spellings.
        let last = try #require(good.utf8.last)
        let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)
        let value = try #require(alphabet.firstIndex(of: last))
        let other = String(decoding: [alphabet[value + 1]], as: UTF8.self)
        let jws = good.dropLast() + other
        #expect(
            await verifier.refusal(of: String(jws)) == .malformed)
    }

    @Test func `input over the size limit is refused, and just under it is read`() async throws {
        let room = CompactJWS.sizeLimit - good.utf8.count
        let filler = String(repeating: "x", count: room * 3 / 4 - 64)
        let large = try authority.sign(Payload.transaction(extra: #","unknown":"\#(filler)""#))
        #expect(large.utf8.count <= CompactJWS.sizeLimit)
        #expect(try await verifier.transaction(large).quantity == 1)

        let huge = try authority.sign(Payload.transaction(extra: #","unknown":"\#(filler)\#(filler)""#))
        #expect(await verifier.refusal(of: huge) == .malformed)
        let dots = String(repeating: ".", count: 10_000_000)
        #expect(await verifier.refusal(of: dots) == .malformed)
    }

    @Test func `deep nesting is refused, not followed`() async throws {
        let deep = String(repeating: "[", count: 20_000) + String(repeating: "]", count: 20_000)
        let jws = try authority.sign(Payload.transaction(extra: #","deep":\#(deep)"#))
        #expect(await verifier.refusal(of: jws) == .malformed)
    }

    // MARK: Dates

    @Test func `certificates are judged at signedDate, whatever the clock says`() async throws {
        let app = try AppIdentity(bundleId: Payload.bundleId, environments: [.production])
        let anchors = try TrustAnchors(rootCertificates: [authority.rootDER], acceptAppleRoots: false)
        let late = SignedDataVerifier(app: app, anchors: anchors, now: { .distantFuture })
        #expect(try await late.transaction(good).transactionId == "2000000000000001")
    }

    @Test func `a payload without signedDate is judged now`() async throws {
        let app = try AppIdentity(bundleId: Payload.bundleId, environments: [.production])
        let anchors = try TrustAnchors(rootCertificates: [authority.rootDER], acceptAppleRoots: false)
        let jws = try authority.sign(Payload.transaction(signedDate: nil))
        let late = TestAuthority.leafValidity.upperBound.addingTimeInterval(10)
        for (now, expected) in [(TestAuthority.signedDate, nil), (late, .expired)]
            as [(Date, VerificationFailure.Reason?)]
        {
            let verifier = SignedDataVerifier(app: app, anchors: anchors, now: { now })
            #expect(await verifier.refusal(of: jws) == expected)
        }
    }

    @Test func `a signedDate outside of the chain's validity is refused, the cache notwithstanding`() async throws {
        let validity = TestAuthority.leafValidity
        _ = try await verifier.transaction(good)
        for (offset, date, expected) in [
            (0.0, validity.lowerBound, nil), (-10.0, validity.lowerBound, .expired),
            (0.0, validity.upperBound, nil), (10.0, validity.upperBound, .expired),
        ] as [(TimeInterval, Date, VerificationFailure.Reason?)] {
            let jws = try authority.sign(Payload.transaction(signedDate: date.addingTimeInterval(offset)))
            #expect(await verifier.refusal(of: jws) == expected)
        }
        #expect(await verifier.refusal(of: good) == nil)
    }

    @Test func `the date a caller gives goes before signedDate, cached or not`() async throws {
        let late = TestAuthority.leafValidity.upperBound.addingTimeInterval(10)
        for _ in 0..<2 {
            #expect(
                await verifier.refusal(of: good, at: late)
                    == .expired)
            _ = try await verifier.transaction(good)
        }
    }

    @Test(arguments: ["1e300", "-1e300", "99999999999999999999", "-9223372036854775808"])
    func `a signedDate no calendar knows is refused and does not crash`(_ date: String) async throws {
        let jws = try authority.sign(Payload.transaction(signedDate: nil, extra: #","signedDate":\#(date)"#))
        #expect(await verifier.refusal(of: jws) == .expired)
        _ = try await verifier.transaction(good)
        #expect(await verifier.refusal(of: jws) == .expired)
    }

    // MARK: Identity

    @Test func `another app's transaction is refused, before its environment is looked at`() async throws {
        for bundleId in ["com.example.other", "com.example.Game", "com.example.game "] {
            let jws = try authority.sign(Payload.transaction(bundleId: bundleId, environment: "Nowhere"))
            #expect(await verifier.refusal(of: jws) == .wrongApp)
        }
    }

    @Test func `F22: what another build of the app sold is the app's where the app lists its bundle id`() async throws {
        let aliases = ["maccatalyst.com.example.game", "com.example.game.Clip"]
        let listing = try authority.verifier(aliases: aliases)
        for bundleId in aliases {
            let jws = try authority.sign(Payload.transaction(bundleId: bundleId))
            #expect(try await listing.transaction(jws).bundleId == bundleId)
            #expect(await verifier.refusal(of: jws) == .wrongApp)
        }
        for bundleId in ["com.example.game.clip", "maccatalyst.com.example.game.Clip", "com.example.other"] {
            let jws = try authority.sign(Payload.transaction(bundleId: bundleId))
            #expect(await listing.refusal(of: jws) == .wrongApp)
        }
    }

    @Test(arguments: [
        ("maccatalyst.com.example.game", true), ("com.example.game.Clip", true), ("com.example.game.clip", true),
        ("com.example.game.AppClip", true), ("maccatalyst.com.example.game.Clip", true), ("com.example.game", false),
        ("com.example.game.two", false), ("com.example.gameClip", false), ("com.example.game.Clip.two", false),
        ("maccatalyst.com.example.other", false), ("com.example", false), ("", false), ("maccatalyst.", false),
    ])
    func `F22: a bundle id that looks like another build of the app is known by its form`(
        bundleId: String, isVariant: Bool
    ) throws {
        #expect(
            try AppIdentity(bundleId: "com.example.game", environments: [.sandbox]).resembles(bundleId) == isVariant)
        let listing = try AppIdentity(
            bundleId: "com.example.game", bundleIdAliases: [bundleId], environments: [.sandbox])
        #expect(!listing.resembles(bundleId) && listing.admits(bundleId) && !listing.admits(nil))
    }

    @Test func `P12: the environment must be one the app is served in`() async throws {
        let sandbox = try authority.sign(Payload.transaction(environment: "Sandbox"))
        #expect(try await verifier.transaction(sandbox).environment == .sandbox)

        let productionOnly = try authority.verifier(environments: [.production])
        let sandboxOnly = try authority.verifier(environments: [.sandbox])
        #expect(
            await productionOnly.refusal(of: sandbox)
                == .wrongEnvironment)
        #expect(
            await sandboxOnly.refusal(of: good)
                == .wrongEnvironment)
        for environment in ["production", "PROD", "Nowhere", "Xcode"] {
            let jws = try authority.sign(Payload.transaction(environment: environment))
            #expect(
                await verifier.refusal(of: jws)
                    == .wrongEnvironment)
        }
    }

    // MARK: Xcode

    @Test(arguments: ["Xcode", "LocalTesting"])
    func `unsigned data is believed only by an app that says so, and never by production`(
        _ environment: String
    ) async throws {
        let own = P256.Signing.PrivateKey()
        let header = #"{"alg":"ES256","kid":"Apple_Xcode_Key","typ":"JWT","x5c":["AAAA"]}"#
        let jws = try authority.sign(Payload.transaction(environment: environment), header: header, key: own)
        #expect(await verifier.refusal(of: jws) == .unsigned)
        let listed = try authority.verifier(environments: [.production, .xcode, .localTesting])
        #expect(await listed.refusal(of: jws) == .unsigned)

        let anchors = try TrustAnchors(rootCertificates: [authority.rootDER])
        let xcode = SignedDataVerifier(
            app: try AppIdentity(
                bundleId: Payload.bundleId, environments: [.xcode, .localTesting, .sandbox],
                acceptsUnsignedXcodeData: true),
            anchors: anchors)
        #expect(try await xcode.transaction(jws).environment?.rawValue == environment)
        // The switch is for Xcode's data only: the same data with Sandbox in the payload is refused, and so is another
        // app's.
        let sandbox = try authority.sign(Payload.transaction(environment: "Sandbox"), header: header, key: own)
        #expect(await xcode.refusal(of: sandbox) == .chainLength)
        let foreign = try authority.sign(
            Payload.transaction(bundleId: "x", environment: environment), header: header, key: own)
        #expect(await xcode.refusal(of: foreign) == .wrongApp)
    }

    @Test func `an app that accepts unsigned data beside production cannot be made`() {
        #expect(throws: AppIdentity.UnsignedDataInProduction.self) {
            try AppIdentity(
                bundleId: Payload.bundleId, environments: [.production, .xcode], acceptsUnsignedXcodeData: true)
        }
    }

    // MARK: Cache

    @Test func `one app's root never counts for another app`() async throws {
        let other = try TestAuthority().verifier()
        _ = try await verifier.transaction(good)
        #expect(await other.refusal(of: good) == .untrustedRoot)
        _ = try await verifier.transaction(good)
        #expect(await other.refusal(of: good) == .untrustedRoot)
    }

    @Test func `more headers than the cache holds are all still believed`() async throws {
        for round in 0..<2 {
            for number in 0..<70 {
                let x5c = authority.x5c.joined(separator: #"",""#)
                let header = #"{"alg":"ES256","kid":"\#(number)","x5c":["\#(x5c)"]}"#
                let jws = try authority.sign(Payload.transaction(id: "\(round)\(number)"), header: header)
                #expect(try await verifier.transaction(jws).transactionId == "\(round)\(number)")
            }
        }
    }

    @Test func `many callers with one new header all get their answer`() async throws {
        try await withThrowingTaskGroup(of: String.self) { group in
            for number in 0..<50 {
                let jws = try authority.sign(Payload.transaction(id: "\(number)"))
                group.addTask { try await verifier.transaction(jws).transactionId }
            }
            #expect(try await group.reduce(into: Set()) { $0.insert($1) }.count == 50)
        }
    }

    // MARK: Mutations

    @Test func `P18: no mutation of a good JWS is believed`() async throws {
        var random = SeededRandom(announcing: "no mutation is believed")
        let seed = random.seed
        _ = try await verifier.transaction(good)
        let fresh = try authority.verifier()
        let original = Array(good.utf8)
        let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.= \n".utf8)
        for round in 0..<3000 {
            var bytes = original
            for _ in 0...Int.random(in: 0...2, using: &random) {
                let place = Int.random(in: 0..<bytes.count, using: &random)
                let byte = alphabet[Int.random(in: 0..<alphabet.count, using: &random)]
                switch Int.random(in: 0..<6, using: &random) {
                case 0: bytes[place] = byte
                case 1 where bytes.count > 1: bytes.removeLast(Int.random(in: 1..<bytes.count, using: &random))
                case 2: bytes[place] = UInt8.random(in: 0...255, using: &random)
                case 3: bytes.insert(byte, at: place)
                case 4 where bytes.count > 1: bytes.remove(at: place)
                default: bytes.swapAt(place, Int.random(in: 0..<bytes.count, using: &random))
                }
            }
            guard bytes != original else { continue }
            let jws = String(decoding: bytes, as: UTF8.self)
            let judge = round.isMultiple(of: 2) ? verifier : fresh
            #expect(
                await judge.refusal(of: jws) != nil,
                "seed \(seed), round \(round)")
        }
    }

    @Test func `roots load from DER and PEM, and nothing else`() throws {
        let pem =
            "-----BEGIN CERTIFICATE-----\n"
            + Data(authority.rootDER).base64EncodedString(options: [.lineLength64Characters, .endLineWithLineFeed])
            + "\n-----END CERTIFICATE-----\n"
        #expect(try TrustAnchors.load(pemOrDER: authority.rootDER) == [authority.rootDER])
        #expect(try TrustAnchors.load(pemOrDER: Array(pem.utf8)) == [authority.rootDER])
        #expect(try TrustAnchors.load(pemOrDER: Array((pem + pem).utf8)).count == 2)
        for bytes in [[], [0x30], Array("text".utf8), Array(authority.rootDER.dropLast())] {
            #expect(throws: TrustAnchors.UnreadableRoot.self) { try TrustAnchors.load(pemOrDER: bytes) }
        }
        #expect(throws: TrustAnchors.UnreadableRoot.self) { try TrustAnchors(rootCertificates: [[0x30, 0x00]]) }
    }

    @Test func `the reasons are the closed list of the command line; only a silent responder is worth a retry`() {
        #expect(
            VerificationFailure.Reason.allCases.map(\.rawValue) == [
                "malformed", "algorithm", "chain_length", "certificate", "untrusted_root", "missing_oid", "expired",
                "signature", "wrong_app", "wrong_environment", "unsigned", "certificate_revoked",
                "certificate_status_unknown",
            ])
        #expect(VerificationFailure.Reason.allCases.filter { VerificationFailure($0).isRetryable } == [.statusUnknown])
    }
}
