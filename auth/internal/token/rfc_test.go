package token

import (
	"strings"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// The keys and tokens of RFC 7515 appendix A, RFC 8037 appendix A and RFC 7638 section 3.1. kid, alg and
// key_ops are added where the RFC's key lacks what ParseJWK demands.
const (
	rfcOct = `{"kty":"oct","kid":"a1","alg":"HS256","key_ops":["sign"],
 "k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}`
	rfcRSA = `{"kty":"RSA","kid":"a2","alg":"RS256","use":"sig","key_ops":["sign","verify"],
"n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
"e":"AQAB",
"d":"Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46sui395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRuOopznQ",
"p":"4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8cQn7ouZ2KKDcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc",
"q":"uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t62wDmpe_HlB-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc",
"dp":"BwKfV3Akq5_MFZDFZCnW-wzl-CCo83WoZvnLQwCTeDv8uzluRSnm71I3QCLdhrqE2e9YkxvuxdBfpT_PI7Yz-FOKnu1R6HsJeDCjn12Sk3vmAktV2zb34MCdy7cpdTh_YVr7tss2u6vneTwrA86rZtu5Mbr1C1XsmvkxHQAdYo0",
"dq":"h_96-mK1R_7glhsum81dZxjTnYynPbZpHziZjeeHcXYsXaaMwkOlODsWa7I9xXDoRwbKgB719rrmI2oKr6N3Do9U0ajaHF-NKJnwgjMd2w9cjz3_-kyNlxAr2v4IKhGNpmM5iIgOS1VZnOZ68m6_pbLBSp3nssTdlqvd0tIiTHU",
"qi":"IYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd-DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd_QJQ3ydy5cY7YIBi87w93IKLEdfnbJtoOPLUW0ITrJReOgo1cq9SbsxYawBgfp_gh6A5603k2-ZQwVK0JKSHuLFkuQ3U"}`
	rfcEC = `{"kty":"EC","kid":"a3","alg":"ES256","key_ops":["sign"],"crv":"P-256",
"x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
"d":"jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"}`
	rfcEd = `{"kty":"OKP","kid":"ed","alg":"EdDSA","key_ops":["sign"],"crv":"Ed25519",
"d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	rfcThumb = `{"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
"e":"AQAB","alg":"RS256","kid":"2011-04-29"}`

	rfcPayload = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
	rfcHS256   = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9." + rfcPayload +
		".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	rfcRS256 = "eyJhbGciOiJSUzI1NiJ9." +
		rfcPayload +
		".cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
	rfcES256 = "eyJhbGciOiJFUzI1NiJ9." +
		rfcPayload + ".DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
	rfcEdDSA = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
)

func mustKey(t testing.TB, jwk string) *Key {
	t.Helper()
	k, err := ParseJWK(jwk)
	must.Succeed(t, err)
	return k.Key
}

func TestRFCSignatures(t *testing.T) {
	f := func(jwk, jws string) {
		t.Helper()
		k := mustKey(t, jwk)
		dot := strings.LastIndexByte(jws, '.')
		input := []byte(jws[:dot])
		sig, ok := decode64(jws[dot+1:])
		if !ok || len(sig) != k.size {
			t.Fatalf("%s: signature of %d bytes, want %d", k, len(sig), k.size)
		}
		if !k.verify(input, sig) {
			t.Errorf("%s: the RFC's signature is refused", k)
		}
		own, err := k.sign(nil, input)
		if err != nil || len(own) != k.size || !k.verify(input, own) {
			t.Errorf("%s: own signature is refused (%v)", k, err)
		}
		if k.Algorithm() != ES256 && string(own) != string(sig) { // ES256 takes random numbers
			t.Errorf("%s: own signature differs from the RFC's", k)
		}
		sig[7] ^= 1
		if k.verify(input, sig) {
			t.Errorf("%s: a signature with one bit turned is accepted", k)
		}
	}
	f(rfcOct, rfcHS256)
	f(rfcRSA, rfcRS256)
	f(rfcEC, rfcES256)
	f(rfcEd, rfcEdDSA)
}

// The one whole token of the RFC that our rules let pass: HS256 without kid, claims with CR and LF.
func TestRFCToken(t *testing.T) {
	secret, err := NewSecret("", mustKey(t, rfcOct).private.([]byte))
	must.Succeed(t, err)
	set, err := NewSet(SetConfig{Secret: secret, AcceptSecret: true, SignWithSecret: true})
	must.Succeed(t, err)
	var c Claims
	must.Succeed(t, must.ErrOf(set.Verify(&c, rfcHS256, time.Unix(1300819379, 0))))
	if c.Issuer != "joe" || c.ExpiresAt != 1300819380 || !strings.Contains(c.Payload, "http://example.com/is_root") {
		t.Errorf("claims are %+v", c)
	}
	if _, err := set.Verify(&c, rfcHS256, time.Unix(1300819380, 0)); err != ErrExpired {
		t.Errorf("in the second of exp: %v, want ErrExpired", err)
	}
}

func TestRFCThumbprints(t *testing.T) {
	f := func(jwk, want string) {
		t.Helper()
		if have := mustKey(t, jwk).Thumbprint(); have != want {
			t.Errorf("thumbprint %s, want %s", have, want)
		}
	}
	f(rfcThumb, "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs")
	f(rfcEd, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k")
	f(rfcOct, "")
}
