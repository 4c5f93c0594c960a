package provider

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"gatehouse/auth/internal/outbound"
)

// beginOAuth1 gets a request token from Twitter. The state is part of the callback's URL.
func (p *Provider) beginOAuth1(ctx context.Context, r Start) (Begun, error) {
	back := p.client.RedirectURI + "?state=" + url.QueryEscape(r.State)
	if strings.Contains(p.client.RedirectURI, "?") {
		back = p.client.RedirectURI + "&state=" + url.QueryEscape(r.State)
	}
	answer, err := p.signedForm(ctx, credentials{key: p.clientID(), secret: p.client.Secret},
		"https://api.twitter.com/oauth/request_token", map[string]string{"oauth_callback": back})
	if err == nil && answer.Get("oauth_callback_confirmed") != "true" {
		err = errors.New("the callback was not confirmed")
	}
	if err != nil {
		return Begun{}, unexpected("Error getting a request token from external provider", err)
	}
	keep := private{Token: answer.Get("oauth_token"), Secret: answer.Get("oauth_token_secret")}
	return Begun{URL: p.resolve(p.row.authorize) + "?oauth_token=" + url.QueryEscape(keep.Token), Private: keep.seal()},
		nil
}

// finishOAuth1 exchanges the callback for a profile. It accepts only the answer to the request token of this sign-in.
func (p *Provider) finishOAuth1(ctx context.Context, callback url.Values, kept private) (Profile, error) {
	if callback.Get("denied") != "" {
		return Profile{}, &Error{Status: http.StatusForbidden, OAuth: "access_denied",
			Message: "The sign-in was refused at " + p.name}
	}
	verifier := callback.Get("oauth_verifier")
	if verifier == "" || callback.Get("oauth_token") == "" {
		return Profile{}, badCallback("OAuth callback with missing authorization code missing")
	}
	if kept.Token == "" || subtle.ConstantTimeCompare([]byte(callback.Get("oauth_token")), []byte(kept.Token)) != 1 {
		return Profile{}, badCallback("OAuth callback with the request token of another sign-in")
	}
	c := credentials{key: p.clientID(), secret: p.client.Secret, token: kept.Token, tokenSecret: kept.Secret}
	answer, err := p.signedForm(ctx, c, p.row.token, map[string]string{"oauth_verifier": verifier})
	if err != nil {
		return Profile{}, noExchange(err)
	}
	c.token, c.tokenSecret = answer.Get("oauth_token"), answer.Get("oauth_token_secret")
	var me jsonObject
	body, err := p.signed(ctx, c,
		p.apiURL()+p.row.profile+"?include_email=true&include_entities=false&skip_status=true", nil)
	if err == nil {
		me, err = decodeObject(body)
	}
	var d Profile
	if err == nil {
		s := &signIn{Provider: p, token: &oauth2.Token{AccessToken: c.token}}
		if d, err = s.copied(ctx, me); err == nil {
			err = p.complete(&d)
		}
	}
	if err != nil {
		return Profile{}, noProfile(err)
	}
	d.Token = c.token // the token's secret is not given to the application
	return d, nil
}

// signedForm makes a signed call whose answer is a form with a token and its secret.
func (p *Provider) signedForm(ctx context.Context, c credentials, ref string,
	more map[string]string) (url.Values, error) {
	body, err := p.signed(ctx, c, p.resolve(ref), more)
	if err != nil {
		return nil, err
	}
	return tokenForm(string(body))
}

func tokenForm(body string) (url.Values, error) {
	form, err := url.ParseQuery(strings.TrimSpace(body))
	if err != nil || form.Get("oauth_token") == "" || form.Get("oauth_token_secret") == "" {
		return nil, errors.New("the answer is no form with a token and its secret")
	}
	return form, nil
}

func (p *Provider) signed(ctx context.Context, c credentials, address string, more map[string]string) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the address of a call can't be read")
	}
	header := http.Header{"Authorization": {c.authorization(http.MethodGet, u, more, randomText(), p.now())}}
	// Do not follow redirects: the signature is valid only for this URL.
	once := &http.Client{
		Transport: p.http.Configured.Transport, Timeout: p.http.Configured.Timeout,
		CheckRedirect: outbound.NoRedirect,
	}
	body, _, err := get(ctx, once, address, header)
	return body, err
}

// The rest of this file is OAuth 1.0a (RFC 5849) with HMAC-SHA1, the only protocol of Twitter's older API. Requests are
// GETs with the protocol parameters in the Authorization header.

// credentials sign a request: the client's key and secret and, if there is a token, the token and its secret.
type credentials struct{ key, secret, token, tokenSecret string }

// authorization returns the Authorization header of a request. The signature includes the URL's query. more has further
// protocol parameters (oauth_callback, oauth_verifier).
func (c credentials) authorization(method string, u *url.URL, more map[string]string, nonce string,
	now time.Time) string {
	params := map[string]string{
		"oauth_consumer_key": c.key, "oauth_nonce": nonce, "oauth_signature_method": "HMAC-SHA1",
		"oauth_timestamp": strconv.FormatInt(now.Unix(), 10), "oauth_version": "1.0",
	}
	if c.token != "" {
		params["oauth_token"] = c.token
	}
	maps.Copy(params, more)
	all := u.Query()
	for name, value := range params {
		all.Add(name, value)
	}
	params["oauth_signature"] = c.sign(baseString(method, u, all))
	header := make([]string, 0, len(params))
	for name, value := range params {
		header = append(header, escape(name)+`="`+escape(value)+`"`)
	}
	slices.Sort(header)
	return "OAuth " + strings.Join(header, ", ")
}

// sign returns the signature of a base string (RFC 5849, section 3.4.2).
func (c credentials) sign(base string) string {
	mac := hmac.New(sha1.New, []byte(escape(c.secret)+"&"+escape(c.tokenSecret)))
	mac.Write([]byte(base))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// baseString returns the text that is signed (RFC 5849, section 3.4.1).
func baseString(method string, u *url.URL, params url.Values) string {
	escaped := url.Values{}
	for name, values := range params {
		for _, value := range values {
			escaped.Add(escape(name), escape(value))
		}
		slices.Sort(escaped[escape(name)])
	}
	// Names and values are escaped twice, the signs & and = between them once. Encode sorts by name.
	text := strings.NewReplacer("&", "%26", "=", "%3D").Replace(escaped.Encode())
	host := strings.ToLower(u.Host)
	if u.Scheme == "http" {
		host = strings.TrimSuffix(host, ":80")
	} else {
		host = strings.TrimSuffix(host, ":443")
	}
	path := cmp.Or(u.EscapedPath(), "/")
	return strings.ToUpper(method) + "&" + escape(strings.ToLower(u.Scheme)+"://"+host+path) + "&" + text
}

// escape percent-encodes s as in RFC 5849, section 3.6: a space becomes %20 and not a plus sign.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
