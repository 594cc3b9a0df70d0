"""Names of real services: which of them hold secrets, and which only look like it."""

from aiperf_svc.config.secret_names import is_secret_name, secret_paths, secrets_in_query

SECRETS = """
Authorization Proxy-Authorization X-Authorization X-Forwarded-Authorization Cookie Set-Cookie
X-Amz-Security-Token X-Amzn-Oidc-Accesstoken AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
X-Functions-Key Ocp-Apim-Subscription-Key Aeg-Sas-Key Aeg-Sas-Token api-key AZURE_OPENAI_API_KEY
X-Ms-Token-Aad-Access-Token X-MS-AuthToken AZURE_STORAGE_CONNECTION_STRING AzureAccountKey
X-Goog-Api-Key X-Goog-IAP-JWT-Assertion X-Goog-Iam-Authorization-Token X-Serverless-Authorization
X-ApiToken X-API-KEY x-api-key apikey X-APIKey x-apikey ApiKey X-Api-Key-Value X-RapidAPI-Key
X-Mashape-Key X-Kong-Admin-Token Kong-Admin-Token apim-subscription-key X-Gravitee-Api-Key
X-Tyk-Authorization X-Consumer-Secret X-IBM-Client-Secret X-Auth-Token X-Subject-Token X-Auth-Key
X-Auth-Email-Key CF-Access-Client-Secret CF-Access-Token CF-Access-Jwt-Assertion Fastly-Key
X-Vault-Token X-Consul-Token X-Nomad-Token Private-Token JOB-TOKEN X-JFrog-Token
X-Shopify-Access-Token X-Figma-Token X-Insert-Key X-License-Key X-Honeycomb-Team-Token DD-API-KEY
DD-APPLICATION-KEY X-Scope-Secret X-Databricks-Token X-Runpod-Api-Key X-Session-Token X-User-Token
X-Access-Key X-Secret-Key X-Master-Key X-Service-Key X-Client-Key X-CSRF-Token X-JWT X-Auth
OPENAI_API_KEY ANTHROPIC_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN NGC_API_KEY VLLM_API_KEY
WANDB_API_KEY GITHUB_TOKEN PGPASSWORD DB_PASS MYSQL_ROOT_PASSWORD REDIS_PASSWORD ADMIN_PWD
AUTHORIZATION_HEADER SSL_KEY_PASSPHRASE --api-key --hf-token apiToken accessToken refreshToken
clientSecret api_key api_keys auth_tokens bearer credentials API_KEY_1 token2
"""

HARMLESS = """
max_tokens X-Max-Tokens min_tokens max_completion_tokens tokenizer tokenizer_mode
skip-tokenizer-init
monkey keyboard keyword keywords turkey hockey author X-Author authority X-Authority :authority
skip_special_tokens stop_token stop_token_ids eos_token bos_token eosToken pad_token next_page_token
page-token max_new_token token_type tokens X-Token-Count num_tokens time_per_token
Idempotency-Key X-Idempotency-Key X-Cache-Key prompt_cache_key Surrogate-Key Sec-WebSocket-Key
partition_key sort_key primary_key public_key routing_key X-Hash-Key shard_key keys passes
X-Request-Id X-Amzn-Trace-Id X-Amz-Date X-Goog-User-Project OpenAI-Organization OpenAI-Project
anthropic-version Content-Type Accept User-Agent X-Forwarded-For X-Tenant-Id X-Key-Id
AWS_ACCESS_KEY_ID
CF-Access-Client-Id api_version password_min_length enable_auth --no-auth require-token bypass
compass
CUDA_VISIBLE_DEVICES NCCL_DEBUG OMP_NUM_THREADS HF_HOME --ssl-keyfile --max-num-batched-tokens
secretary
"""


def test_names_of_secrets_are_known() -> None:
    assert [name for name in SECRETS.split() if not is_secret_name(name)] == []


def test_names_of_other_things_are_left_alone() -> None:
    assert [name for name in HARMLESS.split() if is_secret_name(name)] == []


def test_secret_text_is_found_at_any_depth() -> None:
    inputs = {
        "api_key": "sk-1",
        "use_auth": True,
        "key": 7,
        "token": "",
        "extra": [{"auth": {"clientSecret": "s", "user": "me"}}],
    }
    found = list(secret_paths(inputs, "endpoint.extra_inputs"))
    assert found == [
        "endpoint.extra_inputs.api_key",
        "endpoint.extra_inputs.extra[0].auth.clientSecret",
    ]


def test_secret_in_query_of_path_is_found() -> None:
    assert list(secrets_in_query("/v1/chat?api-version=1&key=AIza", "endpoint.path")) == [
        "endpoint.path"
    ]
    for harmless in ("", "/v1/chat", "/v1/chat?api-version=1", "/reset?key=", "/key=1"):
        assert list(secrets_in_query(harmless, "endpoint.path")) == []
