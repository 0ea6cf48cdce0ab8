import Crypto
import CryptoExtras
import Encoding
import Foundation
import HTTPTypes
import Intake
import JWTKit
import Service
import Settings
import Testing

/// Goal: no request is admitted without a valid key or token, and a token gets its own user's rights, no more. Method:
/// one good credential, and each way to spoil it.
@Suite struct IntakeAuthenticatorTests {
    static let now = Date(timeIntervalSince1970: 1_790_000_000)

    private static func headers(_ authorization: String?) -> HTTPFields {
        var headers: HTTPFields = [:]
        headers[.authorization] = authorization
        return headers
    }

    private static func authenticator(_ configuration: Configuration) -> Authenticator {
        Authenticator(configuration: ConfigurationHolder(configuration), now: { now })
    }

    // MARK: Keys

    @Test("A service key acts for all users of its apps", arguments: ["Bearer ", "bearer ", "BEARER  "])
    func key(_ scheme: String) async throws {
        let caller = try await Self.authenticator(try IntakeFixture.configuration())
            .admit(Self.headers(scheme + IntakeFixture.key))
        #expect(caller == Caller(name: "gateway", userID: nil, scopes: [.intake], apps: ["game"]))
    }

    @Test("Two keys stand side by side for rotation")
    func rotation() async throws {
        let authenticator = Self.authenticator(try IntakeFixture.configuration())
        #expect(
            try await authenticator.admit(Self.headers("Bearer \(IntakeFixture.bothAppsKey)")).apps == [
                "game", "other",
            ])
        #expect(try await authenticator.admit(Self.headers("Bearer \(IntakeFixture.key)")).name == "gateway")
    }

    @Test("A key ends at its expires, and its successor does not")
    func expiry() async throws {
        func authenticator(_ expires: String) throws -> Authenticator {
            Self.authenticator(
                try IntakeFixture.configuration(
                    access: [
                        IntakeFixture.entry("shop", "old-key", "intake", "game", ", expires: \(expires)"),
                        IntakeFixture.entry("shop", "new-key", "intake", "game", ", expires: 2030-01-01T00:00:00Z"),
                    ].joined(separator: "\n")))
        }
        // A key that ends now is refused; one that ends a second later is admitted.
        let ended = try authenticator(Self.now.formatted(.iso8601))
        #expect(
            try await authenticator(Self.now.addingTimeInterval(1).formatted(.iso8601)).admit(
                Self.headers("Bearer old-key")
            )
            .name == "shop")
        let problem = await #expect(throws: Problem.self) { try await ended.admit(Self.headers("Bearer old-key")) }
        #expect(problem == .keyEnded)
        #expect(problem?.status == .unauthorized && problem?.detail?.contains("expires") == true)
        #expect(try await ended.admit(Self.headers("Bearer new-key")).name == "shop")
    }

    @Test(
        "No credentials, or none that count",
        arguments: [
            nil, "", "Bearer", "Bearer ", "Basic Z2F0ZXdheS1rZXktMQ==", "gateway-key-1", "Bearer wrong",
            "Bearer gateway-key-1 gateway-key-1", "Bearer gateway-key-1,Bearer gateway-key-1", "Bearer gateway-key-",
            "Bearer Gateway-Key-1", "Bearer a.b", "Bearer a.b.c", "Bearer a.b.c.d",
            "Bearer " + String(repeating: "k", count: 20_000),
        ] as [String?])
    func strangers(_ authorization: String?) async throws {
        let authenticator = Self.authenticator(try IntakeFixture.configuration())
        let problem = await #expect(throws: Problem.self) { try await authenticator.admit(Self.headers(authorization)) }
        #expect(problem?.status == .unauthorized)
        #expect(problem?.headers[.wwwAuthenticate]?.hasPrefix("Bearer") == true)
    }

    @Test func aScopeIsNeeded() {
        let caller = Caller(name: "k", userID: nil, scopes: [.events], apps: ["game"])
        #expect(throws: Problem.missingScope(.intake)) { try caller.require(.intake) }
        #expect(throws: Problem.missingScope(.intake, or: .claim)) { try caller.require(.intake, or: .claim) }
        #expect(Problem.missingScope(.intake, or: .claim).detail == "needs the scope intake or claim")
        #expect(Problem.missingScope(.intake).status == .forbidden)
    }

    @Test("A key reads its apps, a token its own user, bytes compared")
    func mayRead() {
        let key = Caller(name: "k", userID: nil, scopes: [.intake], apps: ["game"])
        let user = Caller(name: "gatewayJwt", userID: "\u{e9}", scopes: [.intake], apps: ["game"])
        #expect(key.mayRead(appID: "game", userID: "anyone"))
        #expect(key.mayRead(appID: "game", userID: nil))
        #expect(!key.mayRead(appID: "other", userID: "anyone"))
        #expect(user.mayRead(appID: "game", userID: "\u{e9}"))
        #expect(!user.mayRead(appID: "game", userID: "e\u{301}"))
        #expect(!user.mayRead(appID: "game", userID: nil))
        #expect(!user.mayRead(appID: "other", userID: "\u{e9}"))
    }

    // MARK: Tokens

    private struct Claims: JWTPayload {
        var iss: String? = "https://gateway.example.com"
        var aud: AudienceClaim? = "makegood"
        var sub: String? = "u1"
        var exp: Double? = 1_790_000_060
        var nbf: Double?
        func verify(using algorithm: some JWTAlgorithm) {}
    }

    private static let es256 = P256.Signing.PrivateKey()

    private static func configuration(
        _ keys: [String: String], algorithms: String = "ES256", scopes: String = "intake", extra: String = ""
    ) throws -> Configuration {
        let directory = URL.temporaryDirectory.appending(
            path: "makegood-door-\(UUID().uuidString)", directoryHint: .isDirectory)
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        for (name, text) in keys {
            try text.write(to: directory.appending(path: name), atomically: true, encoding: .utf8)
        }
        return try IntakeFixture.configuration(
            gatewayJWT: """
                gatewayJwt: {issuer: "https://gateway.example.com", audience: makegood, algorithms: [\(algorithms)],
                  keys: [\(keys.keys.sorted().joined(separator: ", "))], scopes: [\(scopes)], apps: [game],
                  leewaySeconds: 30\(extra)}
                """, directory: directory)
    }

    private static func defaultConfiguration() throws -> Configuration {
        try configuration(["gateway.pem": es256.publicKey.pemRepresentation])
    }

    private static func token(
        _ claims: Claims = Claims(), kid: String? = nil, key: P256.Signing.PrivateKey = es256
    ) async throws -> String {
        let keys = await JWTKeyCollection().add(ecdsa: try ES256PrivateKey(backing: key))
        var header = JWTHeader()
        header.kid = kid
        return try await keys.sign(claims, header: header)
    }

    private static func user(_ token: String, _ configuration: Configuration) async -> String? {
        try? await authenticator(configuration).admit(headers("Bearer \(token)")).userID
    }

    @Test("A gateway's token names its user and reads or writes for nobody else")
    func goodToken() async throws {
        let configuration = try Self.configuration(
            ["gateway.pem": Self.es256.publicKey.pemRepresentation], scopes: "intake, claim, events, support")
        let caller = try await Self.authenticator(configuration).admit(Self.headers("Bearer \(Self.token())"))
        let limits = UserLimits()
        #expect(
            caller
                == Caller(
                    name: "gatewayJwt", userID: "u1", scopes: [.intake], apps: ["game"],
                    userShare: .init(.user(Array("u1".utf8)), name: "gatewayJwt.user", limits.rate),
                    bytesPerDay: limits.bytesPerDay))
    }

    @Test("Times have a leeway of 30 s, and an end within a day is needed")
    func times() async throws {
        let configuration = try Self.defaultConfiguration()
        let second = Self.now.timeIntervalSince1970
        for (exp, nbf, isGood) in [
            (second - 29, nil, true), (second - 30, nil, false), (second - 3600, nil, false), (nil, nil, false),
            (second + 60, second + 30, true), (second + 60, second + 31, false),
            (second + 86_400 + 30, nil, true), (second + 86_400 + 31, nil, false),
        ] as [(Double?, Double?, Bool)] {
            let token = try await Self.token(Claims(exp: exp, nbf: nbf))
            #expect(await Self.user(token, configuration) == (isGood ? "u1" : nil), "exp \(exp ?? 0) nbf \(nbf ?? 0)")
        }
    }

    @Test("How far ahead a token may end is configured")
    func lifetime() async throws {
        let configuration = try Self.configuration(
            ["gateway.pem": Self.es256.publicKey.pemRepresentation], extra: ", lifetimeMax: 7d")
        let latest = Self.now.timeIntervalSince1970 + 7 * 86_400 + 30
        #expect(await Self.user(try Self.token(Claims(exp: latest)), configuration) == "u1")
        #expect(await Self.user(try Self.token(Claims(exp: latest + 1)), configuration) == nil)
    }

    @Test(
        "A token of another type than an access token is refused",
        arguments: [
            ("JWT", true), ("jwt", true), ("at+jwt", true), ("AT+JWT", true), ("application/at+jwt", true),
            ("rt+jwt", false), ("logout+jwt", false), ("", false),
        ])
    func types(_ type: String, _ isGood: Bool) async throws {
        let header = Data(#"{"alg":"ES256","typ":"\#(type)"}"#.utf8).base64URL
        let claims = Data(#"{"iss":"https://gateway.example.com","aud":"makegood","sub":"u1","exp":1790000060}"#.utf8)
            .base64URL
        let signature = try Self.es256.signature(for: Data("\(header).\(claims)".utf8)).rawRepresentation.base64URL
        let user = await Self.user("\(header).\(claims).\(signature)", try Self.defaultConfiguration())
        #expect((user == "u1") == isGood)
    }

    @Test("Issuer, audience and user must be right")
    func claims() async throws {
        let configuration = try Self.defaultConfiguration()
        for (claims, user) in [
            (Claims(iss: "https://evil.example.com"), nil), (Claims(iss: nil), nil), (Claims(aud: "billing"), nil),
            (Claims(aud: nil), nil), (Claims(aud: AudienceClaim(value: ["billing", "makegood"])), "u1"),
            (Claims(sub: nil), nil),
            (Claims(sub: ""), nil), (Claims(sub: String(repeating: "u", count: 257)), nil),
        ] as [(Claims, String?)] {
            #expect(await Self.user(try Self.token(claims), configuration) == user)
        }
    }

    @Test("Signed by another key, changed, cut, or named by another kid")
    func signatures() async throws {
        let configuration = try Self.defaultConfiguration()
        #expect(await Self.user(try Self.token(key: P256.Signing.PrivateKey()), configuration) == nil)
        let good = try await Self.token()
        #expect(await Self.user(good, configuration) == "u1")
        let parts = good.split(separator: ".").map(String.init)
        let otherClaims = Data(
            #"{"iss":"https://gateway.example.com","aud":"makegood","sub":"u2","exp":1790000060}"#.utf8)
        for spoilt in [
            "\(parts[0]).\(otherClaims.base64URL).\(parts[2])", "\(parts[0]).\(parts[1]).",
            "\(parts[0]).\(parts[1]).AAAA",
            "\(parts[0]).\(parts[1]).\(parts[2])=", "..", "\(parts[1]).\(parts[0]).\(parts[2])",
        ] {
            #expect(await Self.user(spoilt, configuration) == nil)
        }
    }

    @Test(
        "alg none, and a public key used as a shared secret",
        arguments: ["none", "None", "HS256", "ES384", "RS256", ""])
    func algorithms(_ name: String) async throws {
        let configuration = try Self.defaultConfiguration()
        let header = Data(#"{"alg":"\#(name)","typ":"JWT"}"#.utf8).base64URL
        let claims = Data(#"{"iss":"https://gateway.example.com","aud":"makegood","sub":"u1","exp":1790000060}"#.utf8)
            .base64URL
        let signed = Data("\(header).\(claims)".utf8)
        let secret = SymmetricKey(data: Data(Self.es256.publicKey.pemRepresentation.utf8))
        let mac = Data(HMAC<SHA256>.authenticationCode(for: signed, using: secret)).base64URL
        // A valid ES256 signature does not help if the header names another algorithm.
        let signature = try Self.es256.signature(for: signed).rawRepresentation.base64URL
        for third in ["", mac, signature] {
            #expect(await Self.user("\(header).\(claims).\(third)", configuration) == nil)
        }
    }

    @Test func criticalExtensionsAreNotUnderstood() async throws {
        let header = Data(#"{"alg":"ES256","crit":["x"],"x":1}"#.utf8).base64URL
        let claims = Data(#"{"iss":"https://gateway.example.com","aud":"makegood","sub":"u1","exp":1790000060}"#.utf8)
            .base64URL
        let signature = try Self.es256.signature(for: Data("\(header).\(claims)".utf8)).rawRepresentation.base64URL
        #expect(await Self.user("\(header).\(claims).\(signature)", try Self.defaultConfiguration()) == nil)
    }

    @Test("Each algorithm that can be configured, with PEM keys")
    func everyAlgorithm() async throws {
        let es384 = P384.Signing.PrivateKey()
        let ed25519 = Curve25519.Signing.PrivateKey()
        let rsa = try Insecure.RSA.PrivateKey(backing: _RSA.Signing.PrivateKey(keySize: .bits2048))
        let configuration = try Self.configuration(
            [
                "a.pem": Self.es256.publicKey.pemRepresentation, "b.pem": es384.publicKey.pemRepresentation,
                "c.pem": ed25519.publicKey.pemRepresentation, "d.pem": rsa.publicKey.pemRepresentation,
            ], algorithms: "ES256, ES384, RS256, EdDSA")
        let collections = [
            await JWTKeyCollection().add(ecdsa: try ES256PrivateKey(backing: Self.es256)),
            await JWTKeyCollection().add(ecdsa: try ES384PrivateKey(backing: es384)),
            await JWTKeyCollection().add(eddsa: EdDSA.PrivateKey(backing: ed25519)),
            await JWTKeyCollection().add(rsa: rsa, digestAlgorithm: .sha256),
        ]
        for keys in collections { #expect(await Self.user(try keys.sign(Claims()), configuration) == "u1") }
        // RS512 with the right key is not allowed.
        let strange = await JWTKeyCollection().add(rsa: rsa, digestAlgorithm: .sha512)
        #expect(await Self.user(try strange.sign(Claims()), configuration) == nil)
    }

    @Test("Keys of a JWKS, by kid; others in it do no harm")
    func keySet() async throws {
        let second = P256.Signing.PrivateKey()
        func entry(_ key: P256.Signing.PrivateKey, _ kid: String) -> String {
            let point = key.publicKey.rawRepresentation
            return #"{"kty":"EC","crv":"P-256","kid":"\#(kid)","use":"sig","x":"\#(Data(point.prefix(32)).base64URL)","#
                + #""y":"\#(Data(point.suffix(32)).base64URL)"}"#
        }
        let document =
            #"{"keys":[\#(entry(Self.es256, "one")),{"kty":"oct","k":"AAAA","alg":"HS256"},{"kty":"new"},"#
            + #"\#(entry(second, "two"))]}"#
        let configuration = try Self.configuration(["jwks.json": document])
        #expect(await Self.user(try Self.token(kid: "one"), configuration) == "u1")
        #expect(await Self.user(try Self.token(kid: "two", key: second), configuration) == "u1")
        #expect(await Self.user(try Self.token(kid: "one", key: second), configuration) == nil)
        #expect(await Self.user(try Self.token(kid: "three"), configuration) == nil)
        // There are several named keys: a token must name its key.
        #expect(await Self.user(try Self.token(), configuration) == nil)
        let one = try Self.configuration(["jwks.json": #"{"keys":[\#(entry(Self.es256, "one"))]}"#])
        #expect(await Self.user(try Self.token(), one) == "u1")
    }

    @Test("A file that holds no key is refused at start", arguments: ["", "hello", "{}", #"{"keys":[]}"#])
    func noKey(_ text: String) async throws {
        let configuration = try Self.configuration(["gateway.pem": text])
        let section = try #require(configuration.gatewayJWT)
        await #expect(throws: ConfigurationError.self) { try await GatewayVerifier(section) }
    }
}
