//! Capabilities that hints request, and those that are granted: the sentences of `fi_getinfo(3)` and `fi_endpoint(3)` about capabilities.

crate::fabric::cases!("capabilities": zero_means_everything_supported primaries_are_those_selected
    modifiers_default_to_all modifiers_limit modifiers_of_memory_require_memory secondaries_are_supported_or_refused
    secondaries_are_reported rma_events_require_remote_access communication_is_local_and_remote
    sides_are_subsets_of_the_endpoint sides_take_what_applies source_address_is_ignored
    source_address_is_matched_on_request calls_not_selected_are_refused endpoints_of_one_process
    clients_of_one_server early_registration_modes);
