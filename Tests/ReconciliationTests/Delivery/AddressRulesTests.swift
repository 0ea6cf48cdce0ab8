import Testing

@testable import Settings

/// Goal: a webhook goes to public addresses alone, however the others are spelled, unless the endpoint names them.
/// Method: tables of addresses at both ends of each range, of spellings of hosts, and of what `allowPrivate` allows.
@Suite struct AddressRulesTests {
    static let addresses: [(String, AddressRules.Kind?)] = [
        // IPv4, at the ends of each range.
        ("0.0.0.0", .unspecified), ("0.255.255.255", .unspecified), ("1.0.0.0", nil), ("1.1.1.1", nil),
        ("9.255.255.255", nil), ("10.0.0.0", .privateUse), ("10.255.255.255", .privateUse), ("11.0.0.0", nil),
        ("100.63.255.255", nil), ("100.64.0.0", .shared), ("100.127.255.255", .shared), ("100.128.0.0", nil),
        ("100.100.100.200", .metadata), ("126.255.255.255", nil), ("127.0.0.0", .loopback), ("127.0.0.1", .loopback),
        ("127.255.255.255", .loopback), ("128.0.0.0", nil), ("168.63.129.15", nil), ("168.63.129.16", .metadata),
        ("169.253.255.255", nil), ("169.254.0.0", .linkLocal), ("169.254.169.253", .linkLocal),
        ("169.254.169.254", .metadata), ("169.254.170.2", .metadata), ("169.254.170.23", .metadata),
        ("169.254.255.255", .linkLocal), ("169.255.0.0", nil), ("172.15.255.255", nil), ("172.16.0.0", .privateUse),
        ("172.31.255.255", .privateUse), ("172.32.0.0", nil), ("191.255.255.255", nil), ("192.0.0.0", .reserved),
        ("192.0.0.192", .metadata), ("192.0.1.0", nil), ("192.0.2.1", .documentation), ("192.0.3.0", nil),
        ("192.88.98.255", nil), ("192.88.99.1", .reserved), ("192.167.255.255", nil), ("192.168.0.0", .privateUse),
        ("192.168.255.255", .privateUse), ("192.169.0.0", nil), ("198.17.255.255", nil),
        ("198.18.0.0", .documentation), ("198.19.255.255", .documentation), ("198.20.0.0", nil),
        ("198.51.100.7", .documentation), ("203.0.113.7", .documentation), ("223.255.255.255", nil),
        ("224.0.0.1", .multicast), ("239.255.255.255", .multicast), ("240.0.0.0", .reserved),
        ("255.255.255.255", .reserved),
        // IPv6.
        ("::", .unspecified), ("::1", .loopback), ("0:0:0:0:0:0:0:1", .loopback),
        ("0000:0000:0000:0000:0000:0000:0000:0001", .loopback), ("::2", .carrier), ("::7f00:1", .carrier),
        ("::127.0.0.1", .carrier), ("::ffff:127.0.0.1", .carrier), ("::ffff:7f00:1", .carrier),
        ("::FFFF:169.254.169.254", .carrier), ("0:0:0:0:0:ffff:a9fe:a9fe", .carrier), ("::ffff:8.8.8.8", .carrier),
        ("::ffff:0:10.0.0.1", .carrier), ("64:ff9b::", .carrier), ("64:ff9b::7f00:1", .carrier),
        ("64:ff9b::10.0.0.1", .carrier), ("64:ff9b:1::1", .carrier), ("64:ff9b:2::1", .reserved),
        ("2001::1", .carrier), ("2001:0:4136:e378:8000:63bf:3fff:fdd2", .carrier), ("2002:7f00:1::", .carrier),
        ("2002:a9fe:a9fe::1", .carrier), ("2003::1", nil), ("2001:2::1", .documentation), ("2001:10::1", .reserved),
        ("2001:20::1", .reserved), ("2001:1ff:ffff::1", .reserved), ("2001:200::1", nil), ("2001:db7::1", nil),
        ("2001:db8::1", .documentation), ("2001:db8:ffff::1", .documentation), ("2001:db9::1", nil),
        ("3fff::1", .documentation), ("3fff:fff:ffff::1", .documentation), ("3fff:1000::1", nil),
        ("100::1", .reserved), ("1fff:ffff::1", .reserved), ("2000::1", nil), ("2606:4700:4700::1111", nil),
        ("2a00:1450:4001:82b::200e", nil), ("3ffe::1", nil), ("4000::1", .reserved), ("5f00::1", .reserved),
        ("fbff::1", .reserved), ("fc00::1", .privateUse), ("fd00:ec2::254", .metadata), ("fd20:ce::254", .metadata),
        ("fd12:3456:789a::1", .privateUse), ("fdff::1", .privateUse), ("fe00::1", .reserved),
        ("fe80::1", .linkLocal), ("febf::1", .linkLocal), ("fec0::1", .privateUse), ("feff::1", .privateUse),
        ("ff00::1", .multicast), ("ff02::1", .multicast), ("ffff::1", .multicast),
    ]

    @Test("each address is public, or of one kind that is refused")
    func kinds() throws {
        #expect(Self.addresses.count >= 80)
        for (text, kind) in Self.addresses {
            let address = try #require(IPAddress(text), "\(text)")
            #expect(AddressRules.kind(of: address) == kind, "\(text)")
            // An address says the same in its own spelling.
            #expect(IPAddress(address.description) == address)
        }
        let met = Set(Self.addresses.compactMap(\.1))
        #expect(met == Set(AddressRules.Kind.allCases))
    }

    @Test(
        "a host that spells an address otherwise, or no name at all, is no host of a URL",
        arguments: [
            "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0x7f.0.0.1", "0X7F.0.0.1", "017700000001",
            "0177.0.0.1", "127.0.0.01", "127.0.0.0x1", "127.0.0.1.", "127.0.0.256", "127.0.0.1.5", "256.0.0.1",
            "0", "00", "0x", "1.2.3", "4294967296", "a.1", "a.0x1", "localhost.", ".", "..", "", ".a", "a..b", "-a",
            "a-", "a_b", "a%2eb", "127.0.0.1%00", "①②⑦.⓪.⓪.①", "１２７.0.0.1", "127。0。0。1", "ｌocalhost", "bücher.example",
            "a b", "a\u{0}b", "a\tb", "user@127.0.0.1", "user:word@a.example", "a.example@127.0.0.1", "a\\@127.0.0.1",
            "a#@127.0.0.1", "[::1", "::1", "[::1]a", "[::1%25lo]", "[fe80::1%eth0]", "[127.0.0.1]", "[]", "[:::]",
            "[::ffff:127.0.0.1.5]", "[v1.a]", "a:b:80", "a:", "a:0", "a:65536", "a:-1", "a:٣", "a:000080",
            String(repeating: "a", count: 64), String(repeating: "a.", count: 127) + "a",
        ])
    func spellings(host: String) {
        for scheme in ["https://", "http://"] {
            #expect(throws: EndpointURL.Defect.self, "\(host)") { try EndpointURL("\(scheme)\(host)/hooks") }
        }
    }

    @Test(
        "no URL of another form",
        arguments: [
            "a.example", "//a.example/", "https:/a.example", "https:a.example", "https:///a.example",
            "ftp://a.example/",
            "file:///etc/passwd", "gopher://a.example/", "unix:///run/a", "http+unix://%2Frun/a", " https://a.example",
            "https://a.example ", "https://a.example/\r\nX: y", "https://a.example/#fragment", "https://a.example\\b",
            "https://a.example/ü", "https://a.example/{id}", "javascript:alert(1)", "https://a.example;b", "https://?a",
            "https://a.example/" + String(repeating: "p", count: 2048),
        ])
    func forms(url: String) {
        #expect(throws: EndpointURL.Defect.self, "\(url)") { try EndpointURL(url) }
    }

    @Test("hosts are written in lower case and addresses in their own spelling; the rest stays as it is")
    func urls() throws {
        for (given, text, host, isSecure) in [
            ("https://a.example", "https://a.example", "a.example", true),
            (
                "HTTPS://Hooks.Example.COM:8443/In?A=b%20C", "https://hooks.example.com:8443/In?A=b%20C",
                "hooks.example.com", true
            ),
            ("http://backend/x", "http://backend/x", "backend", false),
            ("https://a.example?x=1", "https://a.example?x=1", "a.example", true),
            ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example", true),
            ("https://1.1.1.1:443/a", "https://1.1.1.1:443/a", "1.1.1.1", true),
            ("https://[2606:4700:4700:0::1111]/", "https://[2606:4700:4700::1111]/", "2606:4700:4700::1111", true),
        ] as [(String, String, String, Bool)] {
            let url = try EndpointURL(given)
            #expect(url.text == text && url.host == host && url.isSecure == isSecure, "\(given)")
            #expect(url.address == IPAddress(host), "\(given)")
        }
    }

    @Test("a range has its first and last address and no other, and one spelling")
    func ranges() throws {
        for (text, inside, outside) in [
            ("10.0.0.0/8", ["10.0.0.0", "10.255.255.255"], ["9.255.255.255", "11.0.0.0", "::ffff:10.0.0.1"]),
            ("10.1.2.0/23", ["10.1.2.0", "10.1.3.255"], ["10.1.1.255", "10.1.4.0"]),
            ("10.1.2.3", ["10.1.2.3"], ["10.1.2.2", "10.1.2.4"]), ("0.0.0.0/0", ["1.2.3.4"], ["::1"]),
            ("fd00::/8", ["fd00::", "fdff::1"], ["fc00::1", "fe00::1", "253.0.0.1"]),
            ("fd12:3456:789a:8000::/49", ["fd12:3456:789a:8000::1", "fd12:3456:789a:ffff::1"], ["fd12:3456:789a::1"]),
            ("::/0", ["::1", "fd00::1"], ["127.0.0.1"]),
        ] as [(String, [String], [String])] {
            let range = try #require(AddressRange(text), "\(text)")
            for address in try inside.map({ try #require(IPAddress($0)) }) {
                #expect(range.contains(address), "\(text)")
            }
            for address in try outside.map({ try #require(IPAddress($0)) }) {
                #expect(!range.contains(address), "\(text) \(address)")
            }
        }
        for wrong in [
            "", "/", "10.0.0.0/", "/8", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/08", "10.0.0.0/ 8",
            "10.0.0.0/8/8", "10.0.0.1/8", "10.0.0.0/8\u{0}", "10/8", "10.0.0.0/255.0.0.0", "fd00::/129", "fd00::1/8",
            "[fd00::]/8", "a/8",
        ] {
            #expect(AddressRange(wrong) == nil, "\(wrong)")
        }
    }

    @Test("allowPrivate allows the hosts and networks that it lists, and nothing else")
    func allowed() throws {
        var allowed = AllowedAddresses()
        for text in ["Backend.Internal", "10.1.0.0/16", "::1", "169.254.169.254"] {
            let isAdded = allowed.add(text)
            #expect(isAdded, "\(text)")
        }
        for wrong in ["127.1", "https://a.example", "a b", "*", "*.internal", "10.1.2.3/8", "[::1]", "a:80", ""] {
            let isAdded = allowed.add(wrong)
            #expect(!isAdded, "\(wrong)")
        }
        #expect(allowed.hosts == ["backend.internal"] && allowed.ranges.count == 3)
        for (address, host, kind) in [
            ("192.168.1.1", "backend.internal", nil), ("192.168.1.1", "other.internal", .privateUse),
            ("192.168.1.1", "a.backend.internal", .privateUse), ("10.1.2.3", "other.internal", nil),
            ("10.2.0.0", "other.internal", .privateUse), ("::1", "localhost", nil),
            ("127.0.0.1", "localhost", .loopback),
            ("::ffff:10.1.2.3", "other.internal", .carrier), ("169.254.169.254", "a.example", nil),
            ("169.254.169.253", "a.example", .linkLocal), ("1.1.1.1", "a.example", nil),
        ] as [(String, String, AddressRules.Kind?)] {
            let address = try #require(IPAddress(address))
            #expect(allowed.refusal(of: address, host: host) == kind, "\(address) \(host)")
        }
    }
}
