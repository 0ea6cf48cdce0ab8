import Crypto
import CryptoExtras
import Encoding
import Foundation
import TestServers
import Testing

/// Goal: the user of a request comes from a proof and from nothing else (ASVS 4.1.3, 9.1.2, 9.2). Method: over real
/// HTTP, tokens with exactly one defect each, and every header by which gateways name their users. A refusal names the
/// defect, repeats nothing of the token, and stores nothing.
@Suite(.migratedDatabase, .serialized) struct IntakeGatewayTests {
    private static let key = P256.Signing.PrivateKey()
    private static let second = P256.Signing.PrivateKey()
    private static let user = "user-of-the-gateway"

    private static func seconds(_ fromNow: Double) -> Int { Int(Date.now.timeIntervalSince1970 + fromNow) }

    private static func claims(
        _ change: (inout [String: Any]) -> Void = { _ in }
    ) throws -> String {
        var claims: [String: Any] = [
            "iss": "https://gateway.example.com", "aud": "makegood", "sub": user, "exp": seconds(60),
        ]
        change(&claims)
        return String(decoding: try JSONSerialization.data(withJSONObject: claims), as: UTF8.self)
    }

    private static func token(
        header: String = #"{"alg":"ES256","typ":"JWT"}"#, _ claims: String? = nil,
        sign: (Data) throws -> Data = { try key.signature(for: $0).rawRepresentation }
    ) throws -> String {
        let signed =
            try Data(header.utf8).base64URL + "." + Data((claims ?? Self.claims()).utf8).base64URL
        return try "\(signed).\(sign(Data(signed.utf8)).base64URL)"
    }

    private static func mac(_ secret: Data) -> (Data) -> Data {
        { Data(HMAC<SHA256>.authenticationCode(for: $0, using: SymmetricKey(data: secret))) }
    }

    private static func jwk(_ key: P256.Signing.PrivateKey, _ kid: String) -> String {
        let point = key.publicKey.rawRepresentation
        return #"{"kty":"EC","crv":"P-256","kid":"\#(kid)","use":"sig","x":"\#(Data(point.prefix(32)).base64URL)","#
            + #""y":"\#(Data(point.suffix(32)).base64URL)"}"#
    }

    private static func run(
        _ keyFile: String, _ text: String, rate: String = "", _ body: (RunningIntake) async throws -> Void
    ) async throws {
        let directory = URL.temporaryDirectory.appending(
            path: "makegood-gateway-\(UUID().uuidString)", directoryHint: .isDirectory)
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        try text.write(to: directory.appending(path: keyFile), atomically: true, encoding: .utf8)
        try await RunningIntake.run(
            gatewayJWT: """
                gatewayJwt: {issuer: "https://gateway.example.com", audience: makegood, algorithms: [ES256],
                  keys: [\(keyFile)], scopes: [intake], apps: [game], leewaySeconds: 5\(rate)}
                """, directory: directory, body)
    }

    private static func runWithPEM(
        rate: String = "", _ body: (RunningIntake) async throws -> Void
    ) async throws {
        try await run("gateway.pem", key.publicKey.pemRepresentation, rate: rate, body)
    }

    private static func post() -> String { #"{"signedTransaction":"\#(IntakeFixture.signedTransaction())"}"# }

    private static func refuse(_ intake: RunningIntake, _ token: String, _ words: String) async throws {
        let answer = try await intake.post(post(), key: token)
        #expect(answer.status == 401, "\(words)")
        #expect(answer["code"] == .string("unauthenticated"))
        #expect(answer["safeToFinish"] == .bool(false))
        guard case .string(let detail)? = answer["detail"] else {
            Issue.record("no detail: \(words)")
            return
        }
        #expect(detail.contains(words), "\(detail)")
        #expect(answer.headers["www-authenticate"]?.contains("invalid_token") == true)
        let said = answer.text + answer.headers.values.joined(separator: " ")
        for part in token.split(separator: ".") + [user[...]] where part.count > 3 {
            #expect(!said.contains(part), "\(words)")
        }
    }

    private static func rows(_ intake: RunningIntake) async throws -> Int {
        try await intake.count("select count(*) from receipts")
    }

    @Test("One defect each: 401 that names it")
    func defects() async throws {
        let pem = Data(Self.key.publicKey.pemRepresentation.utf8)
        let rsa = try _RSA.Signing.PrivateKey(keySize: .bits2048)
        let es384 = P384.Signing.PrivateKey()
        let good = try Self.token()
        let parts = good.split(separator: ".").map(String.init)
        let stranger: (Data) throws -> Data = {
            try P256.Signing.PrivateKey().signature(for: $0).rawRepresentation
        }
        let cases: [(String, String)] = [
            ("(alg)", try Self.token(header: #"{"alg":"none"}"#) { _ in Data() }),
            ("(alg)", try Self.token(header: #"{"alg":"None"}"#) { _ in Data() }),
            ("(alg)", try Self.token(header: #"{"alg":"es256"}"#)),
            ("(alg)", try Self.token(header: #"{"alg":"ES256\u0301\u0316\u0301"}"#)),
            ("(alg)", try Self.token(header: #"{"typ":"JWT"}"#)),
            ("(alg)", try Self.token(header: #"{"alg":["ES256"]}"#)),
            // The token is signed with the public key, which is known to everybody, as a shared secret, in each form in
            // which the key is published.
            ("(alg)", try Self.token(header: #"{"alg":"HS256"}"#, sign: Self.mac(pem))),
            (
                "(alg)",
                try Self.token(header: #"{"alg":"HS256"}"#, sign: Self.mac(Self.key.publicKey.derRepresentation))
            ),
            (
                "(alg)",
                try Self.token(header: #"{"alg":"HS256"}"#, sign: Self.mac(Self.key.publicKey.rawRepresentation))
            ),
            ("signature", try Self.token(sign: Self.mac(pem))),
            (
                "(alg)",
                try Self.token(header: #"{"alg":"RS256"}"#) {
                    try rsa.signature(for: $0, padding: .insecurePKCS1v1_5).rawRepresentation
                }
            ),
            ("(alg)", try Self.token(header: #"{"alg":"ES384"}"#) { try es384.signature(for: $0).rawRepresentation }),
            ("(aud)", try Self.token(Self.claims { $0["aud"] = "billing" })),
            ("(aud)", try Self.token(Self.claims { $0["aud"] = ["billing", "shop"] })),
            ("(aud)", try Self.token(Self.claims { $0["aud"] = nil })),
            ("(iss)", try Self.token(Self.claims { $0["iss"] = "https://evil.example.com" })),
            ("(iss)", try Self.token(Self.claims { $0["iss"] = nil })),
            ("(exp)", try Self.token(Self.claims { $0["exp"] = Self.seconds(-30) })),
            ("(exp)", try Self.token(Self.claims { $0["exp"] = nil })),
            ("(exp)", try Self.token(Self.claims { $0["exp"] = "\(Self.seconds(60))" })),
            ("(exp)", try Self.token(#"{"iss":"https://gateway.example.com","aud":"makegood","sub":"u","exp":1e400}"#)),
            ("lifetimeMax", try Self.token(Self.claims { $0["exp"] = Self.seconds(86_400 + 60) })),
            ("lifetimeMax", try Self.token(Self.claims { $0["exp"] = Self.seconds(60) * 1000 })),
            ("(typ)", try Self.token(header: #"{"alg":"ES256","typ":"refresh+jwt"}"#)),
            ("(typ)", try Self.token(header: #"{"alg":"ES256","typ":["JWT"]}"#)),
            ("(nbf)", try Self.token(Self.claims { $0["nbf"] = Self.seconds(30) })),
            ("(nbf)", try Self.token(Self.claims { $0["nbf"] = "now" })),
            ("no user", try Self.token(Self.claims { $0["sub"] = nil })),
            ("no user", try Self.token(Self.claims { $0["sub"] = "" })),
            ("no user", try Self.token(Self.claims { $0["sub"] = ["u1"] })),
            ("no user", try Self.token(Self.claims { $0["sub"] = String(repeating: "u", count: 257) })),
            ("promotions", try Self.token(Self.claims { $0["promotions"] = "spring" })),
            ("promotions", try Self.token(Self.claims { $0["promotions"] = ["spring", 1] })),
            ("signature", try Self.token(sign: stranger)),
            // If the signature is a stranger's, the answer does not name the token's other defects.
            ("signature", try Self.token(Self.claims { $0["aud"] = "billing" }, sign: stranger)),
            ("signature", "\(parts[0]).\(Data(try Self.claims { $0["sub"] = "u2" }.utf8).base64URL).\(parts[2])"),
            ("signature", "\(parts[0]).\(parts[1])."),
            ("signature", try Self.token { try Self.key.signature(for: $0).derRepresentation }),
            ("no JWT", "\(parts[0]).\(parts[1]).\(parts[2])="),
            ("no JWT", "\(parts[1].dropLast(9)).\(parts[1]).\(parts[2])"),
            ("no JWT", ".."),
            ("no JWT", try Self.token(header: #"["ES256"]"#)),
            ("no JWT", try Self.token(header: #"{"alg":"none","alg":"ES256"}"#)),
            ("no JWT", try Self.token(header: #"{"alg":"ES256","a\u006cg":"none"}"#)),
            ("no JWT", try Self.token(header: #"{"alg":"ES256","kid":"a","kid":"b"}"#)),
            ("no JWT", try Self.token(String(Self.claims().dropLast()) + #","sub":"another"}"#)),
            ("no JWT", try Self.token(header: #"{"alg":"ES256","crit":["b64"],"b64":false}"#)),
            ("(kid)", try Self.token(header: #"{"alg":"ES256","kid":7}"#)),
        ]
        try await Self.runWithPEM { intake in
            let before = try await Self.rows(intake)
            for (words, token) in cases { try await Self.refuse(intake, token, words) }
            #expect(try await Self.rows(intake) == before)
            #expect(try await intake.post(Self.post(), key: good).status == 202)
        }
    }

    @Test("Several named keys: a token says which, and is of that one")
    func keyIDs() async throws {
        let set = #"{"keys":[\#(Self.jwk(Self.key, "one")),\#(Self.jwk(Self.second, "two"))]}"#
        try await Self.run("jwks.json", set) { intake in
            let before = try await Self.rows(intake)
            let second: (Data) throws -> Data = { try Self.second.signature(for: $0).rawRepresentation }
            try await Self.refuse(intake, Self.token(), "(kid)")
            try await Self.refuse(intake, Self.token(header: #"{"alg":"ES256","kid":null}"#), "(kid)")
            try await Self.refuse(intake, Self.token(header: #"{"alg":"ES256","kid":"three"}"#), "(kid)")
            try await Self.refuse(
                intake, Self.token(header: #"{"alg":"ES256","kid":"one"}"#, sign: second), "signature")
            // A key that the token itself carries is not trusted.
            let jwk = Self.jwk(P256.Signing.PrivateKey(), "one")
            try await Self.refuse(
                intake, Self.token(header: #"{"alg":"ES256","kid":"one","jwk":\#(jwk)}"#, sign: second), "signature")
            #expect(try await Self.rows(intake) == before)
            let good = try Self.token(header: #"{"alg":"ES256","kid":"two"}"#, sign: second)
            #expect(try await intake.post(Self.post(), key: good).status == 202)
        }
    }

    @Test("A token's user is who it says: another one in the body is 403")
    func anotherUser() async throws {
        try await Self.runWithPEM { intake in
            let before = try await Self.rows(intake)
            let token = try Self.token()
            for other in ["u2", Self.user.uppercased(), Self.user + "\u{301}"] {
                let body = #"{"userId":"\#(other)","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
                let answer = try await intake.post(body, key: token)
                #expect(answer.status == 403)
                #expect(answer["code"] == .string("other_user"))
                #expect(answer["field"] == .string("userId"))
                #expect(!answer.text.contains(Self.user))
            }
            #expect(try await Self.rows(intake) == before)
            // A user's token reads no event feed, whatever the request asks for.
            #expect(try await intake.get("/v1/events", key: token).status == 403)
        }
    }

    /// Headers in which gateways, proxies and frameworks pass identities on.
    private static let identityHeaders = [
        "X-User-Id", "X-User", "X-Username", "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Preferred-Username",
        "X-Forwarded-Access-Token", "X-Forwarded-Client-Cert", "X-Authenticated-User", "X-Authenticated-Userid",
        "X-Auth-Request-User", "X-Remote-User", "Remote-User", "X-Consumer-Username", "X-Consumer-Custom-ID",
        "X-Credential-Identifier", "X-Amzn-Oidc-Identity", "X-Amzn-Oidc-Data", "X-Goog-Authenticated-User-Email",
        "X-Goog-Iap-Jwt-Assertion", "Cf-Access-Jwt-Assertion", "X-MS-Client-Principal", "X-Api-Key", "Api-Key",
        "X-Access-Token", "X-Auth-Token", "X-Session-Token", "X-Original-User", "X-Client-Cert", "X-SSL-Client-S-DN",
        "X-Makegood-User", "Proxy-Authorization", "Cookie",
    ]
    /// Headers that name an address. An address gives no rights.
    private static let addressHeaders = [
        ("X-Forwarded-For", "127.0.0.1"), ("X-Real-IP", "127.0.0.1"), ("Forwarded", "for=127.0.0.1;by=127.0.0.1"),
        ("X-Forwarded-Host", "localhost"), ("X-Forwarded-Proto", "https"), ("X-Original-URL", "/health/live"),
        ("X-Rewrite-URL", "/health/live"), ("X-HTTP-Method-Override", "GET"), ("Via", "1.1 gateway"),
    ]

    @Test("Headers that name a user are no proof: without a credential 401, with one they change nothing")
    func identityHeaders() async throws {
        try await Self.runWithPEM { intake in
            let before = try await Self.rows(intake)
            let good = try Self.token()
            let named = Self.identityHeaders.flatMap { name in
                [(name, "u2"), (name, IntakeFixture.key), (name, "Bearer \(IntakeFixture.key)"), (name, good)]
            }
            let headers = named + Self.addressHeaders
            for header in headers {
                let answer = try await intake.post(
                    #"{"userId":"u2","receipt":"QUJD"}"#, key: nil, headers: [header])
                #expect(answer.status == 401, "\(header.0)")
                #expect(answer["safeToFinish"] == .bool(false))
            }
            for query in ["access_token", "token", "key"] {
                let answer = try await intake.send(
                    "POST", "/v1/receipts?\(query)=\(IntakeFixture.key)", key: nil, body: Self.post())
                #expect(answer.status == 401)
            }
            #expect(try await Self.rows(intake) == before)

            let all = Self.identityHeaders.map { ($0, "u2") } + Self.addressHeaders
            // A key's request without a user stays without a user; a token's request is of the token's user.
            #expect(try await intake.post(Self.post(), headers: all)["code"] == .string("no_user"))
            let answer = try await intake.post(Self.post(), key: good, headers: all)
            #expect(answer.status == 202)
            guard case .string(let id)? = answer["id"] else { return }
            let sql = "select count(*) from receipts where id = '\(id)' and user_id = '\(Self.user)'"
            #expect(try await intake.count(sql) == 1)
            #expect(try await Self.rows(intake) == before + 1)
        }
    }

    @Test("Two credentials are none, in either order")
    func twoCredentials() async throws {
        try await Self.runWithPEM { intake in
            let before = try await Self.rows(intake)
            let good = try Self.token()
            for (first, second) in [
                (good, IntakeFixture.key), (IntakeFixture.key, good), (good, good), ("wrong", IntakeFixture.key),
            ] {
                let answer = try await intake.post(
                    Self.post(), key: first, headers: [("Authorization", "Bearer \(second)")])
                #expect(answer.status == 401)
            }
            #expect(try await Self.rows(intake) == before)
        }
    }

    @Test("All users of a gateway share its rate; tokens that are refused use up none of it")
    func gatewayRate() async throws {
        try await Self.runWithPEM(rate: ", rate: {perSecond: 1, burst: 4}") { intake in
            for _ in 0..<20 {
                #expect(try await intake.post(Self.post(), key: Self.token { _ in Data(count: 64) }).status == 401)
            }
            var statuses: [Int] = []
            for index in 0..<8 {
                let token = try Self.token(Self.claims { $0["sub"] = "rated-\(index)" })
                statuses.append(try await intake.post(Self.post(), key: token).status)
            }
            #expect(statuses.prefix(4).allSatisfy { $0 == 202 })
            #expect(statuses.contains(429))
        }
    }
}
