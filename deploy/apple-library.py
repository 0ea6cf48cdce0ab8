"""Apple's own Python library as a client of the simulated App Store; deploy/apple-library runs it.

    apple-library.py SIMULATOR STATE PORT

SIMULATOR: the address of a simulator that sends notifications to http://127.0.0.1:PORT/apple. STATE: its folder. Each
line that is printed was checked; exit 0 only if all hold.
"""

import inspect
import json
import sys
import threading
import time
import uuid
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
from appstoreserverlibrary import api_client
from appstoreserverlibrary.api_client import APIException, AppStoreServerAPIClient, GetTransactionHistoryVersion
from appstoreserverlibrary.models.AccountTenure import AccountTenure
from appstoreserverlibrary.models.BulletPoint import BulletPoint
from appstoreserverlibrary.models.ConsumptionRequest import ConsumptionRequest
from appstoreserverlibrary.models.ConsumptionRequestV1 import ConsumptionRequestV1
from appstoreserverlibrary.models.ConsumptionStatus import ConsumptionStatus
from appstoreserverlibrary.models.DefaultConfigurationRequest import DefaultConfigurationRequest
from appstoreserverlibrary.models.DeliveryStatus import DeliveryStatus
from appstoreserverlibrary.models.DeliveryStatusV1 import DeliveryStatusV1
from appstoreserverlibrary.models.Environment import Environment
from appstoreserverlibrary.models.ExtendReasonCode import ExtendReasonCode
from appstoreserverlibrary.models.ExtendRenewalDateRequest import ExtendRenewalDateRequest
from appstoreserverlibrary.models.ImageSize import ImageSize
from appstoreserverlibrary.models.LifetimeDollarsPurchased import LifetimeDollarsPurchased
from appstoreserverlibrary.models.LifetimeDollarsRefunded import LifetimeDollarsRefunded
from appstoreserverlibrary.models.MassExtendRenewalDateRequest import MassExtendRenewalDateRequest
from appstoreserverlibrary.models.NotificationHistoryRequest import NotificationHistoryRequest
from appstoreserverlibrary.models.PerformanceTestRequest import PerformanceTestRequest
from appstoreserverlibrary.models.Platform import Platform
from appstoreserverlibrary.models.PlayTime import PlayTime
from appstoreserverlibrary.models.RealtimeUrlRequest import RealtimeUrlRequest
from appstoreserverlibrary.models.Status import Status
from appstoreserverlibrary.models.TransactionHistoryRequest import Order, TransactionHistoryRequest
from appstoreserverlibrary.models.UpdateAppAccountTokenRequest import UpdateAppAccountTokenRequest
from appstoreserverlibrary.models.UploadMessageImage import UploadMessageImage
from appstoreserverlibrary.models.UploadMessageRequestBody import UploadMessageRequestBody
from appstoreserverlibrary.models.UserStatus import UserStatus
from appstoreserverlibrary.receipt_utility import ReceiptUtility
from appstoreserverlibrary.signed_data_verifier import SignedDataVerifier, VerificationException

BUNDLE, APPLE_ID = "com.example.game", 1234567890
SUBSCRIPTION = "Auto-Renewable Subscription"
failures = 0
warnings.simplefilter("ignore", DeprecationWarning)  # the call of version 1 is one of them


def holds(words, check):
    """Prints one line of the result; `check` is a value, or a function whose exception is a failure too."""
    global failures
    try:
        good = check() if callable(check) else check
        note = ""
    except Exception as error:  # pylint: disable=broad-except
        good, note = False, f"\n      {type(error).__name__}: {error} {getattr(error, 'raw_api_error', '')}"
    print(f"{'ok   ' if good else 'FAIL '} {words}{note}", flush=True)
    failures += not good


class Client(AppStoreServerAPIClient):
    """Apple's client, whose calls go to the simulator."""

    used = set()

    def __init__(self, base, key, credentials, environment):
        super().__init__(key, credentials["keyId"], credentials["issuerId"], BUNDLE, environment)
        self._base_url = f"{base}/{environment.value.lower()}"

    def __getattribute__(self, name):
        if not name.startswith("_"):
            Client.used.add(name)
        return super().__getattribute__(name)


class Listener(BaseHTTPRequestHandler):
    """The app's server: keeps the body of every notification, and answers as told."""

    bodies = []
    answers = []

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Listener.bodies.append(json.loads(body))
        self.send_response(Listener.answers.pop(0) if Listener.answers else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main(base, state, port):
    server = ThreadingHTTPServer(("127.0.0.1", port), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(f"{state}/key.p8", "rb") as file:
        key = file.read()
    with open(f"{state}/root.der", "rb") as file:
        root = file.read()
    with open(f"{state}/credentials.json", encoding="utf-8") as file:
        credentials = json.load(file)

    def control(method, path, body=None):
        answer = requests.request(method, f"{base}/control/{path}", json=body or {}, timeout=30)
        assert answer.status_code < 300, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def sell(**fields):
        return control("POST", "purchases", {"app": BUNDLE, "productId": "coins", **fields})

    def arrived(count):
        """The notifications that arrived, once there are `count`; their verified payloads."""
        deadline = time.monotonic() + 20
        while len(Listener.bodies) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        return [verifier.verify_and_decode_notification(body["signedPayload"]) for body in Listener.bodies]

    control("POST", "apps", {"app": "game", "bundleId": BUNDLE, "appAppleId": APPLE_ID, "gracePeriod": "SIXTEEN_DAYS"})
    client = Client(base, key, credentials, Environment.PRODUCTION)
    sandbox = Client(base, key, credentials, Environment.SANDBOX)
    verifier = SignedDataVerifier([root], False, Environment.PRODUCTION, BUNDLE, APPLE_ID)
    transaction = verifier.verify_and_decode_signed_transaction
    now = int(time.time() * 1000)

    print("--- purchases")
    token = str(uuid.uuid4())
    sales = [sell(customer="ann", appAccountToken=token) for _ in range(25)]
    first = sales[0]["transactionId"]
    sold = transaction(sales[0]["signedTransaction"])
    holds("the purchase that an app gets is verified", sold.transactionId == first and sold.bundleId == BUNDLE)
    holds(
        "get_transaction_info",
        lambda: transaction(client.get_transaction_info(first).signedTransactionInfo).appAccountToken == token,
    )

    def pages(version):
        ids, revision = [], None
        while True:
            page = client.get_transaction_history(
                first, revision, TransactionHistoryRequest(startDate=0, sort=Order.ASCENDING), version
            )
            ids += [transaction(signed).transactionId for signed in page.signedTransactions]
            revision = page.revision
            if not page.hasMore:
                return ids

    for version in GetTransactionHistoryVersion:
        expected = [sale["transactionId"] for sale in sales]
        holds(f"get_transaction_history {version.value}: all pages", lambda v=version: pages(v) == expected)
    holds(
        "look_up_order_id",
        lambda: transaction(client.look_up_order_id(sales[1]["orderId"]).signedTransactions[0]).transactionId
        == sales[1]["transactionId"],
    )
    holds(
        "get_app_transaction_info",
        lambda: verifier.verify_and_decode_app_transaction(
            client.get_app_transaction_info(first).signedAppTransactionInfo
        ).appTransactionId
        == sales[0]["appTransactionId"],
    )
    holds("finish_transaction", lambda: client.finish_transaction(first) is None)
    holds(
        "the transaction id in a legacy receipt",
        lambda: ReceiptUtility().extract_transaction_id_from_app_receipt(sales[2]["receipt"])
        == sales[2]["transactionId"],
    )
    other = str(uuid.uuid4())

    def set_token():
        client.set_app_account_token(first, UpdateAppAccountTokenRequest(appAccountToken=other))
        return transaction(client.get_transaction_info(first).signedTransactionInfo).appAccountToken == other

    holds("set_app_account_token", set_token)
    holds(
        "send_consumption_information",
        lambda: client.send_consumption_information(
            first,
            ConsumptionRequest(
                customerConsented=True, sampleContentProvided=False, deliveryStatus=DeliveryStatus.DELIVERED
            ),
        )
        is None,
    )
    holds(
        "send_consumption_data",
        lambda: client.send_consumption_data(
            first,
            ConsumptionRequestV1(
                customerConsented=True,
                consumptionStatus=ConsumptionStatus.NOT_CONSUMED,
                platform=Platform.APPLE,
                sampleContentProvided=False,
                deliveryStatus=DeliveryStatusV1.DELIVERED_AND_WORKING_PROPERLY,
                appAccountToken=other,
                accountTenure=AccountTenure.UNDECLARED,
                playTime=PlayTime.UNDECLARED,
                lifetimeDollarsRefunded=LifetimeDollarsRefunded.UNDECLARED,
                lifetimeDollarsPurchased=LifetimeDollarsPurchased.UNDECLARED,
                userStatus=UserStatus.ACTIVE,
            ),
        )
        is None,
    )
    control("POST", f"purchases/{first}/refund", {"revocationReason": 1, "revocationType": "REFUND_FULL"})
    holds(
        "get_refund_history",
        lambda: [transaction(signed).transactionId for signed in client.get_refund_history(first, None).signedTransactions]
        == [first],
    )

    def unknown():
        try:
            client.get_transaction_info("1")
        except APIException as error:
            return error.raw_api_error == 4040010 and error.http_status_code == 404
        return False

    holds("an unknown transaction is error 4040010", unknown)

    def forged():
        signed = control("POST", "forgeries", {"kind": "foreign_root", "app": BUNDLE})["signedTransaction"]
        try:
            transaction(signed)
        except VerificationException:
            return True
        return False

    holds("the library's verifier refuses a forgery", forged)

    print("--- notifications")
    heard = arrived(1)
    holds("REFUND arrived", [notification.rawNotificationType for notification in heard] == ["REFUND"])
    test = client.request_test_notification().testNotificationToken
    heard = arrived(2)
    holds("request_test_notification: TEST arrived", heard[-1].rawNotificationType == "TEST")

    def status_of_test():
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            answer = client.get_test_notification_status(test)
            if answer.sendAttempts:
                payload = verifier.verify_and_decode_notification(answer.signedPayload)
                attempt = answer.sendAttempts[0].rawSendAttemptResult
                return payload.notificationUUID == heard[-1].notificationUUID and attempt == "SUCCESS"
            time.sleep(0.05)
        return False

    holds("get_test_notification_status: one attempt, SUCCESS", status_of_test)

    print("--- a subscription's life")
    Listener.bodies.clear()
    vip = sell(productId="vip", type=SUBSCRIPTION, period="P1M", customer="bob")
    original = vip["transactionId"]
    holds("SUBSCRIBED arrived", arrived(1)[-1].rawSubtype == "INITIAL_BUY")

    def statuses(wanted):
        answer = client.get_all_subscription_statuses(original, [wanted])
        item = answer.data[0].lastTransactions[0]
        renewal = verifier.verify_and_decode_renewal_info(item.signedRenewalInfo)
        period = transaction(item.signedTransactionInfo)
        return item.status == wanted and renewal.originalTransactionId == original == period.originalTransactionId

    holds("get_all_subscription_statuses: active", lambda: statuses(Status.ACTIVE))
    holds(
        "extend_subscription_renewal_date",
        lambda: client.extend_subscription_renewal_date(
            original,
            ExtendRenewalDateRequest(
                extendByDays=1, extendReasonCode=ExtendReasonCode.SERVICE_ISSUE_OR_OUTAGE, requestIdentifier="one"
            ),
        ).success,
    )
    holds(
        "extend_renewal_date_for_all_active_subscribers",
        lambda: client.extend_renewal_date_for_all_active_subscribers(
            MassExtendRenewalDateRequest(
                extendByDays=1, extendReasonCode=ExtendReasonCode.OTHER, requestIdentifier="all", productId="vip"
            )
        ).requestIdentifier
        == "all",
    )
    holds(
        "get_status_of_subscription_renewal_date_extensions",
        lambda: client.get_status_of_subscription_renewal_date_extensions("all", "vip").succeededCount == 1,
    )
    def extensions():
        extended, summary = arrived(3)[1:]
        assert extended.rawNotificationType == "RENEWAL_EXTENDED"
        assert (summary.rawNotificationType, summary.rawSubtype) == ("RENEWAL_EXTENSION", "SUMMARY")
        assert summary.data is None and summary.summary.requestIdentifier == "all"
        return summary.summary.succeededCount == 1 and summary.summary.failedCount == 0

    holds("RENEWAL_EXTENDED and the summary of the extension for all arrived", extensions)
    control("POST", "clock", {"advance": "P1M"})
    control("POST", "clock", {"advance": "P3D"})
    control("POST", f"subscriptions/{original}", {"billing": "fails"})
    control("POST", "clock", {"advance": "P1M"})
    control("POST", "clock", {"advance": "P3D"})
    holds("get_all_subscription_statuses: grace period", lambda: statuses(Status.BILLING_GRACE_PERIOD))
    control("POST", "clock", {"advance": "P20D"})
    holds("get_all_subscription_statuses: billing retry", lambda: statuses(Status.BILLING_RETRY))
    control("POST", f"subscriptions/{original}", {"billing": "recovers"})
    control("POST", f"subscriptions/{original}", {"autoRenew": False})
    control("POST", "clock", {"advance": "P2M"})
    holds("get_all_subscription_statuses: expired", lambda: statuses(Status.EXPIRED))
    expected = [
        ("SUBSCRIBED", "INITIAL_BUY"),
        ("RENEWAL_EXTENDED", None),
        ("RENEWAL_EXTENSION", "SUMMARY"),
        ("DID_RENEW", None),
        ("DID_FAIL_TO_RENEW", "GRACE_PERIOD"),
        ("GRACE_PERIOD_EXPIRED", None),
        ("DID_RENEW", "BILLING_RECOVERY"),
        ("DID_CHANGE_RENEWAL_STATUS", "AUTO_RENEW_DISABLED"),
        ("EXPIRED", "VOLUNTARY"),
    ]

    def whole_life():
        heard = arrived(len(expected))
        seen = [(notification.rawNotificationType, notification.rawSubtype) for notification in heard]
        assert seen == expected, seen
        for notification in heard:
            if notification.summary is not None:
                continue
            transaction(notification.data.signedTransactionInfo)
            verifier.verify_and_decode_renewal_info(notification.data.signedRenewalInfo)
        return True

    holds("each step was told, and each notification and its parts are verified", whole_life)

    def history():
        seen, page = [], None
        request = NotificationHistoryRequest(startDate=now - 86_400_000, endDate=now + 400 * 86_400_000)
        while True:
            answer = client.get_notification_history(page, request)
            for item in answer.notificationHistory:
                verifier.verify_and_decode_notification(item.signedPayload)
                seen.append([attempt.rawSendAttemptResult for attempt in item.sendAttempts])
            page = answer.paginationToken
            if not answer.hasMore:
                return seen == [["SUCCESS"]] * (len(expected) + 2)

    holds("get_notification_history: all of them, each sent once", history)

    print("--- retention messages, in the sandbox")
    image, message = uuid.uuid4(), uuid.uuid4()
    png = b"\x89PNG\r\n\x1a\n"
    holds("upload_image", lambda: sandbox.upload_image(image, png, ImageSize.FULL_SIZE) is None)
    holds("get_image_list", lambda: [i.imageIdentifier for i in sandbox.get_image_list().imageIdentifiers] == [image])
    body = UploadMessageRequestBody(
        header="Stay",
        body="There is more to come.",
        image=UploadMessageImage(imageIdentifier=image, altText="a castle"),
        bulletPoints=[BulletPoint(text="new levels", imageIdentifier=image, altText="a castle")],
    )
    holds("upload_message", lambda: sandbox.upload_message(message, body) is None)
    holds(
        "get_message_list",
        lambda: [m.messageIdentifier for m in sandbox.get_message_list().messageIdentifiers] == [message],
    )
    default = DefaultConfigurationRequest(messageIdentifier=message)
    holds("configure_default_message", lambda: sandbox.configure_default_message("vip", "en-US", default) is None)
    holds("get_default_message", lambda: sandbox.get_default_message("vip", "en-US").messageIdentifier == message)
    holds("delete_default_message", lambda: sandbox.delete_default_message("vip", "en-US") is None)
    url = "https://game.example.com/retention"
    holds("configure_realtime_url", lambda: sandbox.configure_realtime_url(RealtimeUrlRequest(realtimeURL=url)) is None)
    holds("get_realtime_url", lambda: sandbox.get_realtime_url().realtimeURL == url)
    test = sandbox.initiate_performance_test(PerformanceTestRequest(originalTransactionId=original)).requestId
    holds("initiate_performance_test", bool(test))
    holds("get_performance_test_results", lambda: sandbox.get_performance_test_results(test).rawResult == "PASS")
    holds("delete_realtime_url", lambda: sandbox.delete_realtime_url() is None)
    holds("delete_message", lambda: sandbox.delete_message(message) is None)
    holds("delete_image", lambda: sandbox.delete_image(image) is None)

    calls = {
        name
        for name, _ in inspect.getmembers(api_client.AppStoreServerAPIClient, inspect.isfunction)
        if not name.startswith("_")
    }
    holds(f"the library has {len(calls)} calls, and each was made", lambda: not calls - Client.used or _missing(calls))
    return 1 if failures else 0


def _missing(calls):
    raise AssertionError(", ".join(sorted(calls - Client.used)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/"), sys.argv[2], int(sys.argv[3])))
