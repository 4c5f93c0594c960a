package provider

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// appleFormFields repeats the client secret in the form of the code exchange, as clients of Apple's endpoint have
// always done. The secret is a JWT that the operator has made.
func appleFormFields(p *Provider) map[string]string {
	return map[string]string{"secret": p.client.Secret}
}

func appleProfile(ctx context.Context, s *signIn) (Profile, error) {
	d, err := fromIDToken(ctx, s)
	if err != nil {
		return Profile{}, err
	}
	return d, appleName(s.callback.Get("user"), &d)
}

// appleClaims reads the claims of Apple's ID tokens, which have only verified addresses. is_private_email may be a
// string.
func appleClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), true, true)
	if t.claims.lookup("is_private_email") != nil {
		d.setCustom("is_private_email", t.claims.isTrueOrText("is_private_email"))
	}
	d.setCustom("auth_time", t.claims.lookup("auth_time"))
	d.setCustom("transfer_sub", t.claims.lookup("transfer_sub"))
}

// appleName reads the name from the form field user, which Apple sends only at the first consent. It does not read the
// address in the field, since any client can write the field.
func appleName(user string, d *Profile) error {
	if user == "" {
		return nil
	}
	o, err := decodeObject([]byte(user))
	if err != nil {
		return errors.New("the field user is no JSON object")
	}
	d.set("name full_name", strings.TrimSpace(o.textAt("name.firstName")+" "+o.textAt("name.lastName")))
	return nil
}

func bitbucketMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("picture avatar_url", me.textAt("avatar.href")) // where older versions of the API have it
	var list jsonObject
	if err := s.call(ctx, "/user/emails", "", &list); err != nil {
		return err
	}
	list.eachObject("values", func(e jsonObject) {
		d.addEmail(e.textAt("email"), e.isTrue("is_confirmed"), e.isTrue("is_primary"))
	})
	return nil
}

// discordMore sets the name, with the four digits that names used to have, and the picture. For an account without
// digits, the discriminator is "0" or missing.
func discordMore(_ context.Context, _ *signIn, me jsonObject, d *Profile) error {
	id, digits := me.idAt("id"), me.idAt("discriminator")
	if name := me.textAt("username"); name != "" {
		d.set("name", name+"#"+cmp.Or(digits, "0"))
	}
	const cdn = "https://cdn.discordapp.com/"
	if hash := me.textAt("avatar"); hash != "" {
		ending := ".png"
		if strings.HasPrefix(hash, "a_") {
			ending = ".gif"
		}
		d.set("picture avatar_url", cdn+"avatars/"+id+"/"+hash+ending)
		return nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	which := n % 5
	if err != nil || n == 0 {
		snowflake, _ := strconv.ParseUint(id, 10, 64) // 0 if it cannot be parsed; there is a picture for 0 too
		which = (snowflake >> 22) % 6
	}
	d.set("picture avatar_url", cdn+"embed/avatars/"+strconv.FormatUint(which, 10)+".png")
	return nil
}

// facebookProof adds the proof that this daemon knows the secret of the application that the access token was issued
// for.
func facebookProof(s *signIn, query map[string]string, _ http.Header) {
	mac := hmac.New(sha256.New, []byte(s.client.Secret))
	mac.Write([]byte(s.token.AccessToken))
	query["appsecret_proof"] = hex.EncodeToString(mac.Sum(nil))
}

func facebookMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("name full_name", strings.TrimSpace(me.textAt("first_name")+" "+me.textAt("last_name")))
	return issuedByCall(ctx, s, me, d)
}

// issuedByCall sets iss to the URL of the profile endpoint.
func issuedByCall(_ context.Context, s *signIn, _ jsonObject, d *Profile) error {
	d.set("iss", s.apiURL()+s.row.profile)
	return nil
}

// facebookClaims reads the claims of Limited Login, whose ID tokens are issued to mobile applications.
func facebookClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), true, true)
	d.set("name full_name", t.claims.lookup("name"))
	d.set("picture avatar_url", t.claims.lookup("picture"))
}

// githubMore reads the user's addresses. The address in the profile is only the one that the user shows to the public.
func githubMore(ctx context.Context, s *signIn, _ jsonObject, d *Profile) error {
	var list []jsonObject
	if err := s.call(ctx, "/user/emails", "", &list); err != nil {
		return err
	}
	for _, e := range list {
		d.addEmail(e.textAt("email"), e.isTrue("verified"), e.isTrue("primary"))
	}
	return nil
}

// gitlabMore reads the user's addresses. The address in the profile is verified if the account is confirmed. Of the
// other addresses it is not known whether they are verified.
func gitlabMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("iss", s.base)
	var list []jsonObject
	if err := s.call(ctx, "/api/v4/user/emails", "", &list); err != nil {
		return err
	}
	for _, e := range list {
		d.addEmail(e.textAt("email"), false, false)
	}
	d.addEmail(me.textAt("email"), me.textAt("confirmed_at") != "", true)
	return nil
}

// fromIDTokenOrCall returns the profile from the ID token or, if there is none, from the profile endpoint.
func fromIDTokenOrCall(ctx context.Context, s *signIn) (Profile, error) {
	if s.idToken() == "" {
		return s.readProfile(ctx)
	}
	return fromIDToken(ctx, s)
}

func googleClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), t.claims.isTrueOrText("email_verified"), true)
	d.set("name full_name", t.claims.lookup("name"))
	d.set("picture avatar_url", t.claims.lookup("picture"))
	d.setCustom("hd", t.claims.lookup("hd"))
}

// keycloakTrust returns the trust in the realm's URL, which is the issuer of Keycloak's tokens.
func keycloakTrust(p *Provider) trust { return trust{issuer: p.base} }

// keycloakMore stores all further members of the profile, since a realm's administrator defines them.
func keycloakMore(_ context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("iss", s.base)
	for name, value := range me {
		if !slices.Contains([]string{"sub", "name", "email", "email_verified"}, name) {
			d.setCustom(name, value)
		}
	}
	return nil
}

// slackMore reads Slack's profile, two members of which have URLs as names. Answers to older Slack applications have no
// flag that says whether the address is verified; it then counts as verified only in the legacy mode. With OpenID
// Connect, sub replaces a missing user_id.
func slackMore(_ context.Context, s *signIn, me jsonObject, d *Profile) error {
	if me.lookup("ok") == false {
		return errors.New("the profile call says that it is not ok")
	}
	const user, team = "https://slack.com/user_id", "https://slack.com/team_id"
	if d.Subject, _ = me[user].(string); d.Subject == "" && s.mode != "legacy" {
		d.Subject = me.textAt("sub")
	}
	d.setCustom(team, me[team])
	verified := me.isTrue("email_verified")
	if s.mode == "legacy" && me.lookup("email_verified") == nil {
		verified = true
	}
	d.addEmail(me.textAt("email"), verified, true)
	return nil
}

// snapchatQuery is "{ me { externalId displayName bitmoji { avatar id } email } }" (GraphQL), encoded for a URL.
const snapchatQuery = "%7B+me+%7B+externalId+displayName+bitmoji+%7B+avatar+id+%7D+email+%7D+%7D"

func snapchatMore(_ context.Context, s *signIn, _ jsonObject, d *Profile) error {
	d.set("iss", s.trust().issuer)
	return nil
}

func snapchatClaims(p *Provider, t *idToken, d *Profile) {
	standardClaims(p, t, d)
	for i := range d.Emails {
		d.Emails[i].Verified = true
	}
}

// spotifyMore sets the picture: the largest one or, among equally large ones, the first.
func spotifyMore(_ context.Context, _ *signIn, me jsonObject, d *Profile) error {
	side := func(v any) int64 {
		n, _ := v.(json.Number)
		i, _ := n.Int64() // 0 if Spotify gives null, because it does not know the size
		return i
	}
	largest, found := int64(-1), ""
	me.eachObject("images", func(i jsonObject) {
		if area := side(i["width"]) * side(i["height"]); area > largest {
			largest, found = area, i.textAt("url")
		}
	})
	d.set("picture avatar_url", found)
	return nil
}

// twitchProof adds the application's client ID, which Twitch's API requires in addition to the access token.
func twitchProof(s *signIn, _ map[string]string, header http.Header) {
	header.Set("Client-Id", s.clientID())
}

// workosBegin requires one of three parameters, which choose a connection at WorkOS. One of them is named provider at
// WorkOS; since that is a parameter of this daemon too, the application writes workos_provider.
func workosBegin(params map[string]string) error {
	if v, ok := params["workos_provider"]; ok {
		delete(params, "workos_provider")
		params["provider"] = v
	}
	if params["connection"] == "" && params["organization"] == "" && params["provider"] == "" {
		return &Error{Status: http.StatusBadRequest, Code: "validation_failed",
			Message: "WorkOS needs one of the parameters connection, organization and workos_provider"}
	}
	return nil
}

// workosProfile returns the profile that the token endpoint's answer contains.
func workosProfile(ctx context.Context, s *signIn) (Profile, error) {
	me, ok := s.token.Extra("profile").(map[string]any)
	if !ok {
		return Profile{}, errors.New("the token endpoint's answer has no profile")
	}
	return s.copied(ctx, me)
}

func workosMore(_ context.Context, _ *signIn, me jsonObject, d *Profile) error {
	d.set("name full_name", strings.TrimSpace(me.textAt("first_name")+" "+me.textAt("last_name")))
	return nil
}

// linkedinUserinfo reads the profile endpoint's answer, which has the claims of the ID token.
func linkedinUserinfo(_ context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("iss", s.trust().issuer)
	linkedinClaims(s.Provider, &idToken{claims: me}, d)
	return nil
}

// linkedinClaims reads LinkedIn's claims. The flag that says whether the address is verified may be a string.
func linkedinClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), t.claims.isTrueOrText("email_verified"), true)
	name := t.claims.textAt("name")
	if whole := strings.TrimSpace(t.claims.textAt("given_name") + " " + t.claims.textAt("family_name")); whole != "" {
		name = whole
	}
	d.set("name full_name", name)
	d.set("given_name", t.claims.lookup("given_name"))
	d.set("family_name", t.claims.lookup("family_name"))
	d.set("locale", t.claims.lookup("locale"))
	d.set("picture avatar_url", t.claims.lookup("picture"))
}

// linkedinMore reads the profile in the legacy mode: names in the member's preferred language, and the address by
// another call. Missing values are empty.
func linkedinMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	local := func(name string) string {
		key := me.textAt(name+".preferredLocale.language") + "_" + me.textAt(name+".preferredLocale.country")
		texts, _ := me.lookup(name + ".localized").(map[string]any)
		text, _ := texts[key].(string)
		return text
	}
	d.set("name full_name", strings.TrimSpace(local("firstName")+" "+local("lastName")))
	d.set("picture avatar_url", me.textAt("profilePicture.displayImage~.elements.0.identifiers.0.identifier"))
	var list jsonObject
	if err := s.call(ctx, "/v2/emailAddress", "q=members&projection=(elements*(handle~))", &list); err != nil {
		return err
	}
	d.addEmail(list.textAt("elements.0.handle~.emailAddress"), true, true)
	return nil
}
