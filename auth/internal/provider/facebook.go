package provider

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
)

// facebookProof proves that the caller knows the secret of the app that the access token is for.
func facebookProof(s *signIn, query map[string]string, _ http.Header) {
	mac := hmac.New(sha256.New, []byte(s.client.Secret))
	mac.Write([]byte(s.token.AccessToken))
	query["appsecret_proof"] = hex.EncodeToString(mac.Sum(nil))
}

func facebookMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("name full_name", strings.TrimSpace(me.textAt("first_name")+" "+me.textAt("last_name")))
	return issuedByCall(ctx, s, me, d)
}

// issuedByCall: iss is the address of the profile call.
func issuedByCall(_ context.Context, s *signIn, _ jsonObject, d *Profile) error {
	d.set("iss", s.apiURL()+s.row.profile)
	return nil
}

// facebookClaims are those of Limited Login, whose ID tokens an app on a telephone gets.
func facebookClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), true, true)
	d.set("name full_name", t.claims.lookup("name"))
	d.set("picture avatar_url", t.claims.lookup("picture"))
}
