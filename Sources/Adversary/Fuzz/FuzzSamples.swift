import AppStore

/// Inputs made by hand, each with one trap.
enum FuzzSamples {
    static func texts(signed jws: String) -> [(ParserProbe.Parser, String, String)] {
        [
            (.verifyReceipt, "production", receiptAnswer),
            (.verifyReceipt, "status", #"{"status":"21199","is-retryable":"1"}"#),
            (
                .verifyReceipt, "no-date",
                #"{"status":0,"receipt":{"in_app":[{"transaction_id":1,"product_id":"p","purchase_date_ms":"1e400"}]}}"#
            ),
            (
                .answers, "history",
                #"{"revision":"1_0","hasMore":true,"bundleId":"com.example.game","appAppleId":1234567890,"#
                    + #""environment":"Production","signedTransactions":["\#(jws)"]}"#
            ),
            (
                .answers, "statuses",
                #"{"environment":"Sandbox","bundleId":"b","data":[{"subscriptionGroupIdentifier":"1","lastTransactions":"#
                    + #"[{"originalTransactionId":"1","status":1,"signedTransactionInfo":"a.b.c"}]}]}"#
            ),
            (
                .answers, "notifications",
                #"{"paginationToken":"t","hasMore":false,"notificationHistory":[{"signedPayload":"a.b.c","#
                    + #""sendAttempts":[{"attemptDate":1780000000000.25,"sendAttemptResult":"SUCCESS"}]}]}"#
            ),
            (.answers, "error", #"{"errorCode":4040010,"errorMessage":"\ud83d\ude00"}"#),
            (
                .answers, "numbers",
                #"[0,-0,0.0,-0.0,1e308,5e-324,9223372036854775807,-9223372036854775808,18446744073709551616,1E+2]"#
            ),
            (.answers, "escapes", #"{"\u0061\/\b\f\n\r\t\"\\":"\udbff\udfff","é":"\u0000"}"#),
            (.base64, "standard", "QUJDRA=="), (.base64, "url", "-_8"), (.base64, "spare-bits", "QR=="),
            (
                .base64, "old-receipt", oldReceipt
            ),
            (.base64, "retry-after", "1780000000000"),
            (.jws, "parts", "e30.e30.e30"), (.jws, "repeated", "eyJhbGciOiJub25lIiwiYWxnIjoiRVMyNTYifQ.e30.e30"),
            (.notification, "version1", notificationV1),
            (.proof, "receipt", oldReceipt), (.proof, "jws", jws), (.proof, "quoted", "\"\(jws)\""),
            (.proof, "unity", #"{"Store":"AppleAppStore","TransactionID":"2000","Payload":"\#(oldReceipt)"}"#),
            (.proof, "google", #"{"orderId":"GPA.1","packageName":"p","purchaseToken":"a.AO-J1"}"#),
            (
                .proof, "flutter",
                #"{"purchaseID":"1","verificationData":{"localVerificationData":"{}","#
                    + #""serverVerificationData":"\#(jws)"}}"#
            ),
            (.proof, "percent", "%2522ewoJInNpZ25hdHVyZSIgPSAiQUFBQSI7Cn0%253D%2522"),
            (.proof, "spaces", "MIIBCgKCAQEA 1 \\n2 \\/w=="),
            (.inspect, "control", "e30.eyJ0cmFuc2FjdGlvbklkIjoiXHUwMDFiWzMxbSJ9.e30"),
        ]
    }

    private static let notificationV1 =
        #"{"notification_type":"CANCEL","password":"secret","environment":"PROD","bid":"com.example.game","#
        + #""original_transaction_id":1000000000000001,"auto_renew_status":"false","#
        + #""auto_renew_status_change_date_ms":"1780000000000","unified_receipt":{"environment":"Production","#
        + #""status":0,"latest_receipt":"QUJD","latest_receipt_info":[{"product_id":"s","transaction_id":"2","#
        + #""original_transaction_id":"1","purchase_date_ms":"1779000000000","cancellation_date_ms":"1780000000000","#
        + #""is_upgraded":"true"}]}}"#

    private static let oldReceipt =
        "ewoJInB1cmNoYXNlLWluZm8iID0gImV5SjBjbUZ1YzJGamRHbHZiaTFwWkNJZ1BTQWlOeUk3ZlE9PSI7Cn0="

    static let octets: [(ParserProbe.Parser, String, [UInt8])] = [
        (.receipt, "long-end-of-contents", [0x30, 0x80, 0x06, 0x01, 0x2A, 0x00, 0x81, 0x00]),
        (.receipt, "unbounded", [0x30, 0x80, 0x24, 0x80, 0x24, 0x80]),
        (.receipt, "longer-than-memory", [0x30, 0x88, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
        (.certificates, "empty-sequences", [0x30, 0x00, 0x30, 0x00, 0x30, 0x00]),
        (.inspect, "no-utf8", [0x30, 0xFF, 0xFE, 0x00]),
    ]

    private static let receiptAnswer =
        #"{"status":0,"environment":"Production","receipt":{"bundle_id":"com.example.game","request_date_ms":"1780000000000","#
        + #""receipt_creation_date_ms":"1780000000000","in_app":[{"quantity":"1","product_id":"p","transaction_id":"1","#
        + #""original_transaction_id":"1","purchase_date_ms":"1780000000000","is_trial_period":"false"}]},"#
        + #""latest_receipt":"QUJD","latest_receipt_info":[{"quantity":"1","product_id":"s","transaction_id":2,"#
        + #""original_transaction_id":"2","purchase_date_ms":1780000000000,"expires_date_ms":"1790000000000","#
        + #""web_order_line_item_id":"9","cancellation_date_ms":"1785000000000","cancellation_reason":"0","#
        + #""app_account_token":"7e3fb204-6e3a-4c5e-9f0a-0123456789ab","is_upgraded":"true"}]}"#
}
