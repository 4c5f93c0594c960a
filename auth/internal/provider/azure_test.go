package provider

import (
	"strings"
	"testing"

	"gatehouse/shared/fakeidp"
)

func TestAzureEmail(t *testing.T) {
	t.Parallel()
	f := start(t)
	s := settingsOf(f)
	set := setOf(t, s)
	check := func(claims map[string]any, want string) {
		t.Helper()
		if d := signInAs(t, f, set, "azure", with(claims), fakeidp.Behaviour{}); shown(d.Emails) != want {
			t.Errorf("%v: %s, want %s", claims, shown(d.Emails), want)
		}
	}
	const yes, no = "ann@example.org+!", "ann@example.org!"
	for _, v := range []any{true, "1", "true"} {
		check(map[string]any{"xms_edov": v}, yes)
	}
	for _, v := range []any{false, 0, 1, "0", "false", "True", []bool{true}} {
		check(map[string]any{"xms_edov": v, "verified_primary_email": []string{"ann@example.org"}}, no)
	}
	check(nil, no)
	check(map[string]any{"email_verified": true}, no)
	check(map[string]any{"verified_primary_email": []string{"other@example.org"},
		"verified_secondary_email": []string{"ANN@example.org"}}, yes)
	check(map[string]any{"verified_primary_email": "ann@example.org"}, no)
	s.AzureVerifiedDomains = []string{"Example.org"}
	set = setOf(t, s) // the fake is one tenant
	check(nil, yes)
	check(map[string]any{"email": "ann@other.example"}, "ann@other.example!")
	check(map[string]any{"xms_edov": false}, no)
}

func TestAzureIssuers(t *testing.T) {
	const mine, other = "11111111-2222-4333-8444-555555555555", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
	const ms = "https://login.microsoftonline.com/"
	f := func(base, iss string, native, want bool) {
		t.Helper()
		p := &Provider{row: rowOf("azure", ""), base: strings.TrimSuffix(base, "/"), client: Client{URL: base}}
		got, err := azureTrusts(p, iss, native)
		if (err == nil) != want {
			t.Errorf("%s, issuer %s: %+v %v", base, iss, got, err)
		}
	}
	for _, many := range []string{ms + "common", ms + "organizations"} {
		f(many, ms+mine+"/v2.0", false, true)
		f(many, ms+other+"/v2.0", true, true)
		f(many, "https://sts.windows.net/"+mine+"/", true, true)
		f(many, "https://sts.windows.net/"+mine+"/", false, false)
		f(many, ms+"common/v2.0", false, false)
		f(many, ms+mine+"/v2.0/../x", false, false)
		f(many, "https://evil.example/"+mine+"/v2.0", false, false)
		f(many, "https://login.microsoftonline.com.evil.example/"+mine+"/v2.0", false, false)
		f(many, "https://evil.example/https://login.microsoftonline.com/"+mine+"/v2.0", false, false)
		f(many, "https://x.ciamlogin.com/"+mine+"/v2.0", false, false)
		f(many, "", false, false)
	}
	f(ms+"consumers", ms+azureConsumers+"/v2.0", false, true)
	f(ms+"consumers", ms+mine+"/v2.0", false, false)
	f(ms+mine, ms+mine+"/v2.0", false, true)
	f(ms+mine+"/", ms+mine+"/v2.0", true, true)
	f(ms+mine, ms+other+"/v2.0", false, false)
	f(ms+mine, ms+other+"/v2.0", true, false)
	f(ms+mine, "https://sts.windows.net/"+mine+"/", true, true)
	f(ms+mine, "https://sts.windows.net/"+mine+"/", false, false)
	f(ms+mine, "https://sts.windows.net/"+other+"/", true, false)
	f("https://shop.ciamlogin.com/"+mine, "https://"+mine+".ciamlogin.com/"+mine+"/v2.0", false,
		true) // if its document says so
	f("https://shop.ciamlogin.com/"+mine, ms+mine+"/v2.0", false, false)
	f(ms+"example.onmicrosoft.com", ms+mine+"/v2.0", false, true) // if its document says so
	f(ms+"example.onmicrosoft.com", "https://sts.windows.net/"+mine+"/", true, false)
	f("https://login.example.gov/"+mine, "https://login.example.gov/"+mine+"/v2.0", false, true)
	f("https://login.example.gov/"+mine, ms+mine+"/v2.0", false, false)

	// A tenant that is configured by its name signs with its id, which the document at that name gives.
	server := start(t)
	base := server.Base("azure")
	form := lazily(`^https://login\.test/` + tenantID + `/v2\.0$`)
	server.Behave("azure", fakeidp.Behaviour{
		Discovery: func(d map[string]any) { d["issuer"] = "https://login.test/" + mine + "/v2.0" },
	})
	s := Settings{}.withDefaults()
	d := newDirectory(setOf(t, settingsOf(server)).own[0].http, s)
	named := trust{issuer: base + "/v2.0", learn: form}
	for iss, want := range map[string]bool{"https://login.test/" + mine + "/v2.0": true,
		"https://login.test/" + other + "/v2.0": false, "https://evil.example": false} {
		_, err := d.verified(t.Context(), named, server.IDToken("azure", fakeidp.Ann, map[string]any{"iss": iss}))
		if (err == nil) != want {
			t.Errorf("issuer %s: %v", iss, err)
		}
	}
	if _, err := newDirectory(d.clients, s).document(t.Context(), trust{issuer: base + "/v2.0"}); err == nil {
		t.Error("a document of another issuer is taken")
	}
}
